#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"
#include "node.h"
#include "verbs_abi.h"

/**
 * Queue pairs, and the completion queues that they are polled through. Nothing
 * happens on its own: messages are pulled, and finished sends are noticed,
 * inside poll_cq. Any thread may call; a queue pair and a completion queue are
 * each guarded by a lock of their own (completion queue before queue pair).
 */
namespace jlaunch::soft {

/** A lock held for a few hundred nanoseconds at most, bar a big copy. */
class SpinLock {
 public:
  void lock();
  void unlock() {
    flag_.clear(std::memory_order_release);
  }

 private:
  std::atomic_flag flag_;
};

/** Where the owner of a queue pair sleeps; "" if it never does. */
struct BellPlace {
  std::string path;
  std::uint64_t offset = 0;
};

/** A peer's bell, mapped. Does nothing if the peer has none. */
class PeerBell {
 public:
  PeerBell() = default;
  /** Throws std::system_error. */
  explicit PeerBell(const BellPlace& place);
  /** Wakes the peer if it sleeps. What it is to see was stored before. */
  void ring();

 private:
  Mapping page_;
  Bell* bell_ = nullptr;
};

/** A peer's node file, seen from here: read-only, every access checked. */
class PeerNode {
 public:
  PeerNode() = default;
  /** Throws std::system_error. */
  PeerNode(const std::string& directory, NodeId id);

  /** Null unless [offset, offset + bytes) lies in the peer's file. */
  const std::byte* at(std::uint64_t offset, std::uint64_t bytes);
  /** Maps the queue area of that number; empty if the peer has none. */
  Mapping map_queue(std::uint32_t qp_num);

 private:
  File file_;
  Mapping view_;
};

class Queue : public abi::ibv_qp {
 public:
  /** Throws std::system_error. */
  Queue(
      std::shared_ptr<Node> node,
      abi::ibv_pd& owner,
      const abi::ibv_qp_init_attr& wanted,
      const BellPlace& bell);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /** 0 or an errno, as ibv_modify_qp. May throw std::system_error. */
  int modify(const abi::ibv_qp_attr& attr, unsigned mask);
  int post_send(abi::ibv_send_wr* list, abi::ibv_send_wr** bad);
  int post_recv(abi::ibv_recv_wr* list, abi::ibv_recv_wr** bad);

  /** Fills up to `room` completions for a poll of `cq`. */
  int poll(const abi::ibv_cq* cq, int room, abi::ibv_wc* out);

  /** True once the peer has mapped our node file. */
  bool attached_by_peer() const;
  /** True if something posted was not yet pulled. */
  bool undelivered() const;

 private:
  struct Send {
    std::uint64_t wr_id;
    std::uint32_t bytes;
    bool signaled;
  };
  struct Receive {
    std::uint64_t wr_id;
    std::byte* to;
    std::uint32_t bytes;
  };

  int connect(const abi::ibv_qp_attr& attr);
  int post_one(const abi::ibv_send_wr& wr);
  bool peer_is_ours() const;
  int poll_receives(int room, abi::ibv_wc* out);
  int poll_sends(int room, abi::ibv_wc* out);
  abi::ibv_wc_status pull(const Receive& into, std::uint32_t& bytes);
  int flush(const abi::ibv_cq* cq, int room, abi::ibv_wc* out);
  abi::ibv_wc completion(std::uint64_t wr_id, abi::ibv_wc_opcode) const;

  std::shared_ptr<Node> node_;
  Extent extent_;
  Mapping mapping_;
  QueueArea* area_;
  const bool signal_all_;
  const std::uint32_t send_slots_;
  const std::uint32_t recv_depth_;

  mutable SpinLock lock_; // guards what follows
  PeerNode peer_node_;
  Mapping peer_area_;
  PeerBell peer_bell_;
  const QueueArea* peer_ = nullptr;
  std::uint32_t peer_number_ = 0;
  std::uint32_t peer_slots_ = 0;
  std::uint32_t peer_depth_ = 0;
  std::uint64_t posted_ = 0; // sends
  std::uint64_t reaped_ = 0; // sends whose completion was given out
  std::uint64_t pulled_ = 0;
  std::uint64_t wanted_ = 0; // receives posted
  std::uint64_t received_ = 0; // receives completed
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

class CompletionQueue : public abi::ibv_cq {
 public:
  CompletionQueue(abi::ibv_context& owner, int entries);

  int poll(int room, abi::ibv_wc* out);
  void add(Queue& queue);
  void remove(Queue& queue);
  bool empty() const;

 private:
  mutable SpinLock lock_; // guards what follows
  std::vector<Queue*> queues_;
  std::size_t first_ = 0; // where the next poll begins: nobody starves
};

} // namespace jlaunch::soft
