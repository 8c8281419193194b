#include "fake_verbs.h"

#include <cstring>

namespace jlaunch::test {

using namespace abi;

namespace {

FakeVerbs* alive = nullptr;

struct Objects {
  ibv_device device{};
  ibv_context context{};
  ibv_pd pd{};
  ibv_mr mr{};
  ibv_cq cq{};
  ibv_qp qp{};
};

Objects& objects() {
  static Objects all;
  return all;
}

ibv_device* device_list[2] = {nullptr, nullptr};

int post_send(ibv_qp*, ibv_send_wr* wr, ibv_send_wr**) {
  if (alive->post_error != 0) {
    return alive->post_error;
  }
  alive->sends.push_back(
      {wr->wr_id,
       reinterpret_cast<std::byte*>(wr->sg_list->addr),
       wr->sg_list->length});
  return 0;
}

int post_recv(ibv_qp*, ibv_recv_wr* wr, ibv_recv_wr**) {
  alive->receives.push_back(
      {wr->wr_id,
       reinterpret_cast<std::byte*>(wr->sg_list->addr),
       wr->sg_list->length});
  return 0;
}

int poll_cq(ibv_cq*, int room, ibv_wc* out) {
  if (alive->poll_error != 0) {
    return alive->poll_error;
  }
  int filled = 0;
  while (filled < room && !alive->completions.empty()) {
    out[filled++] = alive->completions.front();
    alive->completions.pop_front();
  }
  return filled;
}

int query_gid(ibv_context*, std::uint8_t, int index, ibv_gid* out) {
  // The first IPv4-mapped entry is at 3: an index of 1 would be wrong.
  *out = {};
  if (index == 3) {
    out->raw[10] = 0xff;
    out->raw[11] = 0xff;
    out->raw[12] = 10;
  }
  return 0;
}

int query_port(ibv_context*, std::uint8_t, ibv_port_attr* out) {
  out->gid_tbl_len = 8;
  out->lid = 5;
  return 0;
}

int modify_qp(ibv_qp*, ibv_qp_attr* attr, int) {
  const bool wrong_gid =
      attr->qp_state == IBV_QPS_RTR && attr->ah_attr.grh.sgid_index != 3;
  return wrong_gid ? 22 : alive->modify_error;
}

} // namespace

FakeVerbs::FakeVerbs() {
  alive = this;
}

FakeVerbs::~FakeVerbs() {
  alive = nullptr;
}

std::shared_ptr<const VerbsApi> FakeVerbs::api() {
  auto& made = objects();
  made.context.ops.poll_cq = poll_cq;
  made.context.ops.post_send = post_send;
  made.context.ops.post_recv = post_recv;
  made.qp.context = &made.context;
  device_list[0] = &made.device;
  auto api = std::make_shared<VerbsApi>();
  api->provider = "fake";
  api->get_device_list = [](int* count) {
    *count = 1;
    return device_list;
  };
  api->free_device_list = [](ibv_device**) {};
  api->get_device_name = [](ibv_device*) { return "fake0"; };
  api->open_device = [](ibv_device*) { return &objects().context; };
  api->close_device = [](ibv_context*) { return 0; };
  api->alloc_pd = [](ibv_context*) { return &objects().pd; };
  api->dealloc_pd = [](ibv_pd*) { return 0; };
  api->reg_mr = [](ibv_pd*, void*, std::size_t, int) { return &objects().mr; };
  api->dereg_mr = [](ibv_mr*) { return 0; };
  api->create_cq = [](ibv_context*, int, void*, void*, int) {
    return &objects().cq;
  };
  api->destroy_cq = [](ibv_cq*) { return 0; };
  api->create_qp = [](ibv_pd*, ibv_qp_init_attr*) { return &objects().qp; };
  api->destroy_qp = [](ibv_qp*) { return 0; };
  api->modify_qp = modify_qp;
  api->query_port = query_port;
  api->query_gid = query_gid;
  return api;
}

void FakeVerbs::deliver_bytes(
    const FrameHeader& header,
    const std::vector<std::byte>& payload,
    std::uint32_t bytes) {
  const Posted into = receives.front();
  receives.pop_front();
  std::memcpy(into.at, &header, sizeof(header));
  std::memcpy(into.at + sizeof(header), payload.data(), payload.size());
  ibv_wc wc{};
  wc.wr_id = into.wr_id;
  wc.opcode = IBV_WC_RECV;
  wc.byte_len = bytes;
  completions.push_back(wc);
}

void FakeVerbs::deliver(
    const FrameHeader& header,
    const std::vector<std::byte>& payload) {
  deliver_bytes(
      header,
      payload,
      static_cast<std::uint32_t>(sizeof(header) + payload.size()));
}

void FakeVerbs::complete_sends() {
  for (; completed_sends_ < sends.size(); ++completed_sends_) {
    complete(sends[completed_sends_].wr_id, IBV_WC_SUCCESS);
  }
}

void FakeVerbs::complete(std::uint64_t wr_id, ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = wr_id;
  wc.status = status;
  completions.push_back(wc);
}

FrameHeader frame_from_peer(
    Collective kind,
    Dtype dtype,
    std::uint64_t count,
    std::uint64_t seq) {
  FrameHeader header{};
  header.magic = kFrameMagic;
  header.version = kWireVersion;
  header.source = 1;
  header.epoch = 1;
  header.length = static_cast<std::uint32_t>(count * size_of(dtype));
  header.seq = seq;
  header.fingerprint = fingerprint(kind, dtype, count);
  return header;
}

} // namespace jlaunch::test
