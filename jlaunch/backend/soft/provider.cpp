// The C face of the soft provider: the 16 symbols that JACCL looks up, the
// three operations that it calls through the context, and our extensions. No
// exception leaves it.

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "extensions.h"
#include "layout.h"
#include "memory.h"
#include "node.h"
#include "queue.h"
#include "verbs_abi.h"

#define JLAUNCH_EXPORT __attribute__((visibility("default")))

namespace jlaunch::soft {

using namespace abi;

namespace {

// The limits. A soft device has no hardware table, so it allows a whole mesh on
// one device; the real driver's limit (10 queue pairs) can be set for tests. 100
// regions per protection domain are the real driver's, and enough.
constexpr long kDefaultDevices = 8;
constexpr long kDefaultMaxQueues = kMaxQueues - 1;
constexpr long kDefaultMaxRegions = 100;
constexpr std::size_t kMaxDevices = 64;
constexpr std::uint32_t kMaxMessageBytes = 1U << 30;
constexpr std::uint32_t kMaxWorkRequests = 8192;

thread_local std::string last_error;

/** An errno of the C face, with its words kept for jlaunch_soft_error. */
int refuse(int error, std::string words) {
  last_error = std::move(words);
  errno = error;
  return error;
}

/** The errno of the exception in flight. */
int caught() {
  try {
    throw;
  } catch (const std::system_error& e) {
    return refuse(e.code().value(), e.what());
  } catch (const std::bad_alloc&) {
    return refuse(ENOMEM, "out of memory");
  } catch (const std::exception& e) {
    return refuse(EIO, e.what());
  }
}

long limit(const char* name, long preset) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    return preset;
  }
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return end != text && *end == '\0' && value > 0 ? value : preset;
}

/** The devices soft0, soft1, …; they live as long as the library. */
std::array<ibv_device, kMaxDevices>& devices() {
  static std::array<ibv_device, kMaxDevices> list = [] {
    std::array<ibv_device, kMaxDevices> made{};
    for (std::size_t i = 0; i < made.size(); ++i) {
      std::snprintf(made[i].name, sizeof(made[i].name), "soft%zu", i);
      std::snprintf(made[i].dev_name, sizeof(made[i].dev_name), "soft%zu", i);
    }
    return made;
  }();
  return list;
}

struct Context : ibv_context {
  Context() : ibv_context{} {}

  std::shared_ptr<Node> node;
  BellPlace bell;
  std::atomic<bool> sealed{false};
  std::mutex mutex; // guards what follows
  std::vector<Queue*> queues;
};

struct Domain : ibv_pd {
  Domain() : ibv_pd{} {}

  std::atomic<long> regions{0};
  /** A queue pair went away with messages that peers may still pull. */
  std::atomic<bool> keep_extents{false};
};

/** Takes the node's name away once every peer has mapped it. */
void unname_if_attached(Context& context) {
  if (!context.sealed || !context.node->named()) {
    return;
  }
  std::scoped_lock lock(context.mutex);
  if (std::ranges::all_of(
          context.queues, [](Queue* q) { return q->attached_by_peer(); })) {
    context.node->remove_name();
  }
}

int poll_cq(ibv_cq* cq, int room, ibv_wc* out) {
  const int filled = static_cast<CompletionQueue*>(cq)->poll(room, out);
  if (filled == 0) {
    unname_if_attached(*static_cast<Context*>(cq->context));
  }
  return filled;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  return static_cast<Queue*>(qp)->post_send(wr, bad);
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return static_cast<Queue*>(qp)->post_recv(wr, bad);
}

ibv_gid gid_at(const Node& node, int index) {
  ibv_gid gid{};
  const NodeId id = node.id();
  if (index == 0) { // link-local
    gid.raw[0] = 0xfe;
    gid.raw[1] = 0x80;
  } else { // IPv4-mapped 127.x.y.z
    gid.raw[10] = 0xff;
    gid.raw[11] = 0xff;
    gid.raw[12] = 127;
  }
  gid.raw[13] = static_cast<std::uint8_t>(id.low >> 16);
  gid.raw[14] = static_cast<std::uint8_t>(id.low >> 8);
  gid.raw[15] = static_cast<std::uint8_t>(id.low);
  return gid;
}

/** Null and errno if the queue pair may not be made. */
bool admits(Context& context, const ibv_qp_init_attr& wanted) {
  if (wanted.qp_type != IBV_QPT_UC) {
    refuse(EOPNOTSUPP, "only unreliable-connected queue pairs are offered");
    return false;
  }
  if (wanted.send_cq == nullptr || wanted.recv_cq == nullptr ||
      wanted.srq != nullptr || wanted.cap.max_send_sge > 1 ||
      wanted.cap.max_recv_sge > 1 || wanted.cap.max_inline_data > 0 ||
      wanted.cap.max_send_wr > kMaxWorkRequests ||
      wanted.cap.max_recv_wr > kMaxWorkRequests) {
    refuse(EINVAL, "one sge, nothing inline, no shared receive queue");
    return false;
  }
  std::scoped_lock lock(context.mutex);
  if (static_cast<long>(context.queues.size()) >=
      limit("JLAUNCH_SOFT_MAX_QP", kDefaultMaxQueues)) {
    refuse(EBUSY, "all queue pairs of the device are taken");
    return false;
  }
  return true;
}

} // namespace

} // namespace jlaunch::soft

using namespace jlaunch::soft;
using namespace jlaunch::abi;

extern "C" {

JLAUNCH_EXPORT ibv_device** ibv_get_device_list(int* count) {
  const auto wanted = std::min<std::size_t>(
      static_cast<std::size_t>(limit("JLAUNCH_SOFT_DEVICES", kDefaultDevices)),
      kMaxDevices);
  // Freed by ibv_free_device_list, in C's way.
  auto** list =
      static_cast<ibv_device**>(std::calloc(wanted + 1, sizeof(ibv_device*)));
  if (list == nullptr) {
    return nullptr;
  }
  for (std::size_t i = 0; i < wanted; ++i) {
    list[i] = &devices()[i];
  }
  if (count != nullptr) {
    *count = static_cast<int>(wanted);
  }
  return list;
}

JLAUNCH_EXPORT void ibv_free_device_list(ibv_device** list) {
  std::free(list);
}

JLAUNCH_EXPORT const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}

JLAUNCH_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  try {
    auto context = std::make_unique<Context>();
    context->node = Node::acquire();
    context->device = device;
    context->cmd_fd = -1;
    context->async_fd = -1;
    context->num_comp_vectors = 1;
    context->ops.poll_cq = poll_cq;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    return context.release(); // owned by the caller until ibv_close_device
  } catch (...) {
    caught();
    return nullptr;
  }
}

JLAUNCH_EXPORT int ibv_close_device(ibv_context* context) {
  const std::unique_ptr<Context> owned(static_cast<Context*>(context));
  return 0;
}

JLAUNCH_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  try {
    auto domain = std::make_unique<Domain>();
    domain->context = context;
    return domain.release();
  } catch (...) {
    caught();
    return nullptr;
  }
}

JLAUNCH_EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  if (static_cast<Domain*>(pd)->regions != 0) {
    return refuse(EBUSY, "the protection domain still has regions");
  }
  const std::unique_ptr<Domain> owned(static_cast<Domain*>(pd));
  return 0;
}

JLAUNCH_EXPORT ibv_mr* ibv_reg_mr(
    ibv_pd* pd,
    void* address,
    std::size_t bytes,
    int) {
  auto& domain = static_cast<Domain&>(*pd);
  if (bytes == 0 || bytes > UINT32_MAX) {
    refuse(EINVAL, "a region is 1 to 2^32 - 1 bytes");
    return nullptr;
  }
  if (domain.regions >= limit("JLAUNCH_SOFT_MAX_MR", kDefaultMaxRegions)) {
    refuse(ENOMEM, "all memory regions of the protection domain are taken");
    return nullptr;
  }
  try {
    auto region = std::make_unique<Region>(
        static_cast<Context*>(pd->context)->node, *pd, address, bytes);
    if (!regions().add(*region)) {
      refuse(ENOMEM, "all memory regions of the process are taken");
      return nullptr;
    }
    ++domain.regions;
    return region.release();
  } catch (...) {
    caught();
    return nullptr;
  }
}

JLAUNCH_EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  const std::unique_ptr<Region> owned(static_cast<Region*>(mr));
  auto& domain = static_cast<Domain&>(*mr->pd);
  regions().remove(*owned);
  --domain.regions;
  if (domain.keep_extents) {
    owned->keep_extent();
  }
  return 0;
}

JLAUNCH_EXPORT ibv_cq* ibv_create_cq(
    ibv_context* context,
    int entries,
    void* data,
    void*,
    int) {
  if (entries < 1) {
    refuse(EINVAL, "a completion queue has at least one entry");
    return nullptr;
  }
  try {
    auto cq = std::make_unique<CompletionQueue>(*context, entries);
    cq->cq_context = data;
    return cq.release();
  } catch (...) {
    caught();
    return nullptr;
  }
}

JLAUNCH_EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  if (!static_cast<CompletionQueue*>(cq)->empty()) {
    return refuse(EBUSY, "the completion queue still has queue pairs");
  }
  const std::unique_ptr<CompletionQueue> owned(
      static_cast<CompletionQueue*>(cq));
  return 0;
}

JLAUNCH_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  auto& context = static_cast<Context&>(*pd->context);
  try {
    if (!admits(context, *wanted)) {
      return nullptr;
    }
    auto queue =
        std::make_unique<Queue>(context.node, *pd, *wanted, context.bell);
    static_cast<CompletionQueue*>(wanted->send_cq)->add(*queue);
    static_cast<CompletionQueue*>(wanted->recv_cq)->add(*queue);
    std::scoped_lock lock(context.mutex);
    context.queues.push_back(queue.get());
    return queue.release();
  } catch (...) {
    caught();
    return nullptr;
  }
}

JLAUNCH_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  const std::unique_ptr<Queue> owned(static_cast<Queue*>(qp));
  auto& context = static_cast<Context&>(*qp->context);
  {
    std::scoped_lock lock(context.mutex);
    std::erase(context.queues, owned.get());
  }
  static_cast<CompletionQueue*>(qp->send_cq)->remove(*owned);
  static_cast<CompletionQueue*>(qp->recv_cq)->remove(*owned);
  if (owned->undelivered()) {
    static_cast<Domain*>(qp->pd)->keep_extents = true;
  }
  return 0;
}

JLAUNCH_EXPORT int ibv_query_port(
    ibv_context* context,
    std::uint8_t port,
    ibv_port_attr* out) {
  if (port != 1) {
    return refuse(EINVAL, "a soft device has one port, number 1");
  }
  ibv_port_attr attr{};
  attr.state = IBV_PORT_ACTIVE;
  attr.max_mtu = IBV_MTU_4096;
  attr.active_mtu = IBV_MTU_4096;
  attr.gid_tbl_len = 2;
  attr.max_msg_sz = kMaxMessageBytes;
  attr.pkey_tbl_len = 1;
  attr.lid = static_cast<Context*>(context)->node->id().lid;
  attr.max_vl_num = 1;
  attr.active_width = 2;
  attr.active_speed = 32;
  attr.phys_state = 5; // link up
  attr.link_layer = 1; // InfiniBand
  std::memcpy(out, &attr, kQueryPortBytes);
  return 0;
}

JLAUNCH_EXPORT int ibv_query_gid(
    ibv_context* context,
    std::uint8_t port,
    int index,
    ibv_gid* out) {
  if (port != 1 || index < 0 || index > 1) {
    return refuse(EINVAL, "a soft device has two GIDs, at 0 and 1");
  }
  *out = gid_at(*static_cast<Context*>(context)->node, index);
  return 0;
}

JLAUNCH_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  try {
    const int error =
        static_cast<Queue*>(qp)->modify(*attr, static_cast<unsigned>(mask));
    return error == 0
        ? 0
        : refuse(
              error,
              error == ENOENT ? "the peer has no such queue pair (any more)"
                              : "not a step of INIT, RTR, RTS");
  } catch (...) {
    return caught();
  }
}

JLAUNCH_EXPORT int jlaunch_soft_set_bell(
    ibv_context* context,
    const char* path,
    std::uint64_t offset) {
  try {
    BellPlace place{path, offset};
    if (place.path.size() >= kBellPathBytes) {
      return refuse(ENAMETOOLONG, place.path);
    }
    const PeerBell usable(place); // refused here rather than at every peer
    static_cast<Context*>(context)->bell = std::move(place);
    return 0;
  } catch (...) {
    return caught();
  }
}

JLAUNCH_EXPORT void jlaunch_soft_seal(ibv_context* context) {
  static_cast<Context*>(context)->sealed = true;
}

JLAUNCH_EXPORT const char* jlaunch_soft_error() {
  return last_error.c_str();
}

} // extern "C"
