#include "connection.h"

#include <cerrno>
#include <cstring>

namespace jlaunch {

using namespace abi;

namespace {

constexpr std::uint8_t kPort = 1;
/** Any number that both sides agree on will do. */
constexpr std::uint32_t kFirstPacket = 7;

} // namespace

Connection::Connection(const Device& device, int peer, std::uint32_t depth)
    : device_(&device), peer_(peer) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = device.completions();
  wanted.recv_cq = device.completions();
  wanted.cap.max_send_wr = depth;
  wanted.cap.max_recv_wr = depth;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_recv_sge = 1;
  wanted.qp_type = IBV_QPT_UC;
  qp_ = {
      device.api().create_qp(device.domain(), &wanted),
      device.api().destroy_qp};
  if (qp_.get() == nullptr) {
    throw_verbs(
        device.api(),
        "ibv_create_qp",
        errno,
        device.name() + " to rank " + std::to_string(peer));
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = kPort;
  attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  modify(
      attr,
      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
      "INIT");
}

void Connection::modify(ibv_qp_attr& attr, unsigned mask, const char* step)
    const {
  const int error =
      device_->api().modify_qp(qp_.get(), &attr, static_cast<int>(mask));
  if (error != 0) {
    throw_verbs(
        device_->api(),
        std::string("ibv_modify_qp to ") + step,
        error,
        device_->name() + " to rank " + std::to_string(peer_));
  }
}

Destination Connection::address() const {
  Destination address = device_->address();
  address.qp_num = qp_->qp_num;
  return address;
}

void Connection::connect(const Destination& peer) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.rq_psn = kFirstPacket;
  attr.dest_qp_num = peer.qp_num;
  attr.ah_attr.dlid = peer.lid;
  attr.ah_attr.port_num = kPort;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.hop_limit = 1;
  attr.ah_attr.grh.sgid_index = device_->gid_index();
  std::memcpy(attr.ah_attr.grh.dgid.raw, peer.gid, sizeof(peer.gid));
  modify(
      attr,
      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
          IBV_QP_RQ_PSN,
      "RTR");
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = kFirstPacket;
  modify(attr, IBV_QP_STATE | IBV_QP_SQ_PSN, "RTS");
}

int Connection::post_send(
    const std::byte* frame,
    std::uint32_t bytes,
    WorkId id) const {
  ibv_sge sge{};
  sge.addr = reinterpret_cast<std::uintptr_t>(frame);
  sge.length = bytes;
  sge.lkey = device_->lkey();
  ibv_send_wr wr{};
  wr.wr_id = id.pack();
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  return qp_->context->ops.post_send(qp_.get(), &wr, &bad);
}

int Connection::post_recv(std::byte* frame, std::uint32_t bytes, WorkId id)
    const {
  ibv_sge sge{};
  sge.addr = reinterpret_cast<std::uintptr_t>(frame);
  sge.length = bytes;
  sge.lkey = device_->lkey();
  ibv_recv_wr wr{};
  wr.wr_id = id.pack();
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return qp_->context->ops.post_recv(qp_.get(), &wr, &bad);
}

} // namespace jlaunch
