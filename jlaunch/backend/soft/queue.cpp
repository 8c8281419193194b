#include "queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>

#include "platform.h"

namespace jlaunch::soft {

using namespace abi;

namespace {

constexpr std::uint32_t kMaxDepth = 16384;
constexpr int kSpinsBeforeYield = 64;

std::uint32_t slots_for(std::uint32_t depth) {
  return std::bit_ceil(std::max<std::uint32_t>(depth, 1));
}

NodeId node_of(const ibv_ah_attr& address) {
  const auto& raw = address.grh.dgid.raw;
  NodeId id;
  id.lid = address.dlid;
  id.low =
      (std::uint32_t{raw[13]} << 16) | (std::uint32_t{raw[14]} << 8) | raw[15];
  return id;
}

} // namespace

void SpinLock::lock() {
  for (int spins = 0; flag_.test_and_set(std::memory_order_acquire); ++spins) {
    if (spins < kSpinsBeforeYield) {
      spin_pause();
    } else {
      yield_thread();
    }
  }
}

PeerBell::PeerBell(const BellPlace& place) {
  if (place.path.empty()) {
    return;
  }
  if (place.offset % alignof(Bell) != 0 || place.offset > (1U << 30)) {
    throw std::system_error(
        EINVAL, std::generic_category(), "the peer's bell is out of place");
  }
  const auto page = place.offset / page_size() * page_size();
  const auto within = place.offset - page;
  const auto bytes = whole_pages(within + sizeof(Bell));
  const auto file = File::open_shared(
      place.path,
      O_RDWR,
      static_cast<std::size_t>(place.offset) + sizeof(Bell));
  page_ = Mapping(file, page, bytes, PROT_READ | PROT_WRITE);
  bell_ = reinterpret_cast<Bell*>(page_.data() + within);
}

void PeerBell::ring() {
  if (bell_ == nullptr) {
    return;
  }
  // Pairs with the sleeper's: announce, fence, look once more, sleep. Either
  // it sees what we stored, or we see that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (bell_->sleepers.load(std::memory_order_relaxed) != 0) {
    bell_->rung.fetch_add(1, std::memory_order_release);
    futex_wake(bell_->rung);
  }
}

PeerNode::PeerNode(const std::string& directory, NodeId id)
    : file_(open_node(directory, id)),
      view_(file_, 0, file_.size(), PROT_READ) {
  const auto* header = reinterpret_cast<const NodeHeader*>(view_.data());
  if (header->magic != kNodeMagic || header->version != kNodeVersion) {
    throw std::system_error(
        EINVAL,
        std::generic_category(),
        id.file_name() + " is not a node of this version");
  }
}

const std::byte* PeerNode::at(std::uint64_t offset, std::uint64_t bytes) {
  const auto inside = [&] {
    return offset <= view_.size() && bytes <= view_.size() - offset;
  };
  if (!inside()) {
    const auto size = file_.size(); // the peer may have registered more
    if (size > view_.size()) {
      view_ = Mapping(file_, 0, size, PROT_READ);
    }
  }
  return inside() ? view_.data() + offset : nullptr;
}

Mapping PeerNode::map_queue(std::uint32_t qp_num) {
  const auto* header = reinterpret_cast<const NodeHeader*>(view_.data());
  const auto offset =
      header->queues[qp_num & kQueueIndexMask].load(std::memory_order_acquire);
  if (offset < kHeaderBytes || offset % page_size() != 0) {
    return {};
  }
  const auto* bytes = at(offset, sizeof(QueueArea));
  if (bytes == nullptr) {
    return {};
  }
  const auto* area = reinterpret_cast<const QueueArea*>(bytes);
  const auto slots = area->slots;
  if (area->qp_num.load(std::memory_order_acquire) != qp_num ||
      !std::has_single_bit(slots) || slots > kMaxDepth || area->depth == 0 ||
      area->depth > slots || at(offset, queue_area_bytes(slots)) == nullptr) {
    return {};
  }
  return {file_, offset, whole_pages(queue_area_bytes(slots)), PROT_READ};
}

Queue::Queue(
    std::shared_ptr<Node> node,
    ibv_pd& owner,
    const ibv_qp_init_attr& wanted,
    const BellPlace& bell)
    : ibv_qp{},
      node_(std::move(node)),
      extent_(
          node_->allocate(queue_area_bytes(slots_for(wanted.cap.max_send_wr)))),
      mapping_(
          node_->file(),
          extent_.offset,
          extent_.bytes,
          PROT_READ | PROT_WRITE),
      area_(reinterpret_cast<QueueArea*>(mapping_.data())),
      signal_all_(wanted.sq_sig_all != 0),
      send_slots_(slots_for(wanted.cap.max_send_wr)),
      recv_depth_(std::max<std::uint32_t>(wanted.cap.max_recv_wr, 1)),
      sends_(send_slots_),
      receives_(recv_depth_) {
  context = owner.context;
  qp_context = wanted.qp_context;
  pd = &owner;
  send_cq = wanted.send_cq;
  recv_cq = wanted.recv_cq;
  state = IBV_QPS_RESET;
  qp_type = IBV_QPT_UC;
  area_->head.store(0, std::memory_order_relaxed);
  area_->tail.store(0, std::memory_order_relaxed);
  area_->dest_qp_num.store(0, std::memory_order_relaxed);
  area_->dest_node.store(0, std::memory_order_relaxed);
  area_->slots = send_slots_;
  area_->depth = std::max<std::uint32_t>(wanted.cap.max_send_wr, 1);
  area_->bell_offset = bell.offset;
  area_->bell_path.fill('\0');
  bell.path.copy(area_->bell_path.data(), kBellPathBytes - 1);
  qp_num = node_->enter_queue(extent_.offset);
  if (qp_num == 0) {
    node_->release(extent_);
    throw std::system_error(
        EBUSY, std::generic_category(), "all queue pairs are taken");
  }
  handle = qp_num;
  area_->qp_num.store(qp_num, std::memory_order_release);
}

Queue::~Queue() {
  area_->qp_num.store(0, std::memory_order_release);
  node_->leave_queue(qp_num);
  if (!undelivered()) {
    node_->release(extent_);
  }
}

bool Queue::undelivered() const {
  std::scoped_lock lock(lock_);
  if (posted_ == reaped_ || peer_ == nullptr) {
    return posted_ != reaped_;
  }
  return peer_->tail.load(std::memory_order_acquire) != posted_;
}

bool Queue::attached_by_peer() const {
  std::scoped_lock lock(lock_);
  return peer_ != nullptr &&
      peer_->dest_node.load(std::memory_order_acquire) ==
      node_->id().packed() &&
      peer_->dest_qp_num.load(std::memory_order_acquire) == qp_num;
}

int Queue::connect(const ibv_qp_attr& attr) {
  if (attr.ah_attr.is_global == 0 || attr.ah_attr.grh.sgid_index > 1) {
    return EINVAL;
  }
  PeerNode peer_node(node_->directory(), node_of(attr.ah_attr));
  Mapping area = peer_node.map_queue(attr.dest_qp_num);
  if (!area) {
    return ENOENT;
  }
  const auto* peer = reinterpret_cast<const QueueArea*>(area.data());
  BellPlace place;
  place.path.assign(
      peer->bell_path.data(),
      strnlen(peer->bell_path.data(), kBellPathBytes - 1));
  place.offset = peer->bell_offset;
  peer_bell_ = PeerBell(place);
  peer_node_ = std::move(peer_node);
  peer_area_ = std::move(area);
  peer_ = peer;
  peer_number_ = attr.dest_qp_num;
  peer_slots_ = peer->slots;
  peer_depth_ = peer->depth;
  area_->dest_node.store(
      node_of(attr.ah_attr).packed(), std::memory_order_release);
  area_->dest_qp_num.store(attr.dest_qp_num, std::memory_order_release);
  return 0;
}

int Queue::modify(const ibv_qp_attr& attr, unsigned mask) {
  if ((mask & IBV_QP_STATE) == 0) {
    return EINVAL;
  }
  std::scoped_lock lock(lock_);
  const auto has = [mask](unsigned bits) { return (mask & bits) == bits; };
  int error = EINVAL;
  if (attr.qp_state == IBV_QPS_ERR) {
    error = 0;
  } else if (attr.qp_state == IBV_QPS_RESET) {
    // A used queue pair is not used again: its peer goes on counting.
    error = peer_ == nullptr ? 0 : EINVAL;
  } else if (state == IBV_QPS_RESET && attr.qp_state == IBV_QPS_INIT) {
    error =
        has(IBV_QP_PORT | IBV_QP_PKEY_INDEX) && attr.port_num == 1 ? 0 : EINVAL;
  } else if (state == IBV_QPS_INIT && attr.qp_state == IBV_QPS_RTR) {
    error = has(IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU) ? connect(attr)
                                                               : EINVAL;
  } else if (state == IBV_QPS_RTR && attr.qp_state == IBV_QPS_RTS) {
    error = 0;
  }
  if (error != 0) {
    return error;
  }
  if (attr.qp_state == IBV_QPS_RESET) {
    received_ = wanted_; // dropped without completions, as verbs says
  }
  state = attr.qp_state;
  return 0;
}

int Queue::post_one(const ibv_send_wr& wr) {
  if (posted_ - reaped_ >= area_->depth) {
    return ENOMEM;
  }
  if (wr.opcode != IBV_WR_SEND || wr.num_sge != 1) {
    return EINVAL;
  }
  const ibv_sge& sge = *wr.sg_list;
  Region* region = regions().find(sge.lkey);
  if (region == nullptr || !region->contains(sge.addr, sge.length)) {
    return EINVAL;
  }
  Descriptor& slot = area_->slot(posted_);
  slot.offset.store(
      region->publish(sge.addr, sge.length), std::memory_order_relaxed);
  slot.length.store(sge.length, std::memory_order_relaxed);
  const bool signaled = signal_all_ || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  sends_[posted_ & (send_slots_ - 1)] = {wr.wr_id, sge.length, signaled};
  ++posted_;
  area_->head.store(posted_, std::memory_order_release);
  return 0;
}

int Queue::post_send(ibv_send_wr* list, ibv_send_wr** bad) {
  std::scoped_lock lock(lock_);
  int error = state == IBV_QPS_RTS || state == IBV_QPS_ERR ? 0 : EINVAL;
  auto* wr = list;
  for (; wr != nullptr && error == 0; wr = error == 0 ? wr->next : wr) {
    error = post_one(*wr);
  }
  peer_bell_.ring();
  if (error != 0 && bad != nullptr) {
    *bad = wr;
  }
  return error;
}

int Queue::post_recv(ibv_recv_wr* list, ibv_recv_wr** bad) {
  std::scoped_lock lock(lock_);
  int error = state == IBV_QPS_RESET ? EINVAL : 0;
  auto* wr = list;
  for (; wr != nullptr && error == 0; wr = error == 0 ? wr->next : wr) {
    if (wanted_ - received_ >= recv_depth_) {
      error = ENOMEM;
      continue;
    }
    Receive receive{wr->wr_id, nullptr, 0};
    if (wr->num_sge == 1) {
      const ibv_sge& sge = *wr->sg_list;
      const Region* region = regions().find(sge.lkey);
      if (region == nullptr || !region->contains(sge.addr, sge.length)) {
        error = EINVAL;
        continue;
      }
      receive.to = reinterpret_cast<std::byte*>(sge.addr);
      receive.bytes = sge.length;
    } else if (wr->num_sge != 0) {
      error = EINVAL;
      continue;
    }
    receives_[wanted_ % recv_depth_] = receive;
    ++wanted_;
  }
  if (error != 0 && bad != nullptr) {
    *bad = wr;
  }
  return error;
}

ibv_wc Queue::completion(std::uint64_t wr_id, ibv_wc_opcode opcode) const {
  ibv_wc wc{};
  wc.wr_id = wr_id;
  wc.opcode = opcode;
  wc.qp_num = qp_num;
  wc.src_qp = peer_number_;
  return wc;
}

bool Queue::peer_is_ours() const {
  // After it was destroyed (0) its last words may still be pulled.
  const auto number = peer_->qp_num.load(std::memory_order_acquire);
  return (number == peer_number_ || number == 0) &&
      peer_->dest_qp_num.load(std::memory_order_relaxed) == qp_num &&
      peer_->dest_node.load(std::memory_order_relaxed) == node_->id().packed();
}

ibv_wc_status Queue::pull(const Receive& into, std::uint32_t& bytes) {
  // Our copy of the slot count: the peer's own may have changed meanwhile.
  const Descriptor& slot = (&peer_->first)[pulled_ & (peer_slots_ - 1)];
  const auto offset = slot.offset.load(std::memory_order_relaxed);
  bytes = slot.length.load(std::memory_order_relaxed);
  if (bytes > into.bytes) {
    return IBV_WC_LOC_LEN_ERR;
  }
  const auto* from = peer_node_.at(offset, bytes);
  if (from == nullptr) {
    return IBV_WC_REM_INV_REQ_ERR;
  }
  std::memcpy(into.to, from, bytes);
  return IBV_WC_SUCCESS;
}

int Queue::poll_receives(int room, ibv_wc* out) {
  if (peer_ == nullptr || received_ == wanted_) {
    return 0;
  }
  const auto head = peer_->head.load(std::memory_order_acquire);
  const std::uint64_t ready = head - pulled_;
  if (ready == 0 || ready > peer_slots_ || !peer_is_ours()) {
    return 0;
  }
  const auto before = pulled_;
  int filled = 0;
  while (filled < room && pulled_ != head && received_ != wanted_) {
    const Receive& into = receives_[received_ % recv_depth_];
    ibv_wc wc = completion(into.wr_id, IBV_WC_RECV);
    wc.status = pull(into, wc.byte_len);
    out[filled++] = wc;
    ++received_;
    ++pulled_;
    if (wc.status != IBV_WC_SUCCESS) {
      state = IBV_QPS_ERR;
      break;
    }
  }
  area_->tail.store(pulled_, std::memory_order_release);
  // The sender waits for room only when its queue was full; the fence pairs
  // with its own between posting and sleeping.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (peer_->head.load(std::memory_order_relaxed) - before >= peer_depth_) {
    peer_bell_.ring();
  }
  return filled;
}

int Queue::poll_sends(int room, ibv_wc* out) {
  if (peer_ == nullptr || reaped_ == posted_) {
    return 0;
  }
  const auto tail = peer_->tail.load(std::memory_order_acquire);
  const auto done = tail - reaped_;
  if (done == 0 || done > posted_ - reaped_ || !peer_is_ours()) {
    return 0;
  }
  int filled = 0;
  while (filled < room && reaped_ != tail) {
    const Send& send = sends_[reaped_ & (send_slots_ - 1)];
    if (send.signaled) {
      ibv_wc wc = completion(send.wr_id, IBV_WC_SEND);
      wc.byte_len = send.bytes;
      out[filled++] = wc;
    }
    ++reaped_;
  }
  return filled;
}

int Queue::flush(const ibv_cq* cq, int room, ibv_wc* out) {
  int filled = 0;
  while (cq == send_cq && filled < room && reaped_ != posted_) {
    const Send& send = sends_[reaped_++ & (send_slots_ - 1)];
    out[filled] = completion(send.wr_id, IBV_WC_SEND);
    out[filled++].status = IBV_WC_WR_FLUSH_ERR;
  }
  while (cq == recv_cq && filled < room && received_ != wanted_) {
    const Receive& receive = receives_[received_++ % recv_depth_];
    out[filled] = completion(receive.wr_id, IBV_WC_RECV);
    out[filled++].status = IBV_WC_WR_FLUSH_ERR;
  }
  return filled;
}

int Queue::poll(const ibv_cq* cq, int room, ibv_wc* out) {
  std::scoped_lock lock(lock_);
  if (state == IBV_QPS_ERR) {
    return flush(cq, room, out);
  }
  int filled = 0;
  if (cq == recv_cq) {
    filled += poll_receives(room, out);
  }
  if (cq == send_cq && filled < room) {
    filled += poll_sends(room - filled, out + filled);
  }
  return filled;
}

CompletionQueue::CompletionQueue(ibv_context& owner, int entries) : ibv_cq{} {
  context = &owner;
  cqe = entries;
}

int CompletionQueue::poll(int room, ibv_wc* out) {
  std::scoped_lock lock(lock_);
  int filled = 0;
  const auto count = queues_.size();
  for (std::size_t i = 0; i < count && filled < room; ++i) {
    auto at = first_ + i;
    at -= at >= count ? count : 0;
    filled += queues_[at]->poll(this, room - filled, out + filled);
  }
  if (filled == room && ++first_ >= count) {
    first_ = 0;
  }
  return filled;
}

void CompletionQueue::add(Queue& queue) {
  std::scoped_lock lock(lock_);
  if (std::ranges::find(queues_, &queue) == queues_.end()) {
    queues_.push_back(&queue);
  }
}

void CompletionQueue::remove(Queue& queue) {
  std::scoped_lock lock(lock_);
  std::erase(queues_, &queue);
  first_ = 0;
}

bool CompletionQueue::empty() const {
  std::scoped_lock lock(lock_);
  return queues_.empty();
}

} // namespace jlaunch::soft
