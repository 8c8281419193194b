#include "robust_life.h"

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <system_error>

#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "platform.h"

namespace jlaunch {

#if defined(__linux__)

static_assert(kLifeWaiters == FUTEX_WAITERS);
static_assert(kLifeDied == FUTEX_OWNER_DIED);
static_assert(kLifeHolder == FUTEX_TID_MASK);

Life life_of(std::uint32_t word) {
  if ((word & kLifeDied) != 0) {
    return Life::died;
  }
  return (word & kLifeHolder) != 0 ? Life::held : Life::free;
}

/**
 * The list that the kernel walks when the thread ends. It has one node, here;
 * the kernel finds the word at the node's address plus `futex_offset`, so the
 * node needs no room in the shared block.
 */
struct RobustLife::List {
  robust_list_head head{};
  robust_list node{};
  robust_list_head* before = nullptr;
  std::size_t before_size = 0;

  explicit List(std::atomic<std::uint32_t>& word) {
    head.list.next = &head.list;
    head.futex_offset = static_cast<long>(
        reinterpret_cast<std::uintptr_t>(&word) -
        reinterpret_cast<std::uintptr_t>(&node));
    if (::syscall(SYS_get_robust_list, 0, &before, &before_size) != 0 ||
        ::syscall(SYS_set_robust_list, &head, sizeof(head)) != 0) {
      throw std::system_error(
          errno, std::generic_category(), "robust futexes (set_robust_list)");
    }
  }
  ~List() {
    ::syscall(SYS_set_robust_list, before, before_size);
  }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  /** Announces a change, so that a death in the middle of it is marked too. */
  void begin() {
    head.list_op_pending = &node;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  void end(bool held) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    node.next = &head.list;
    head.list.next = held ? &node : &head.list;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    head.list_op_pending = nullptr;
  }
};

namespace {

std::uint32_t holder_id() {
  return thread_id() & kLifeHolder;
}

} // namespace

#else

Life life_of(std::uint32_t word) {
  const std::uint32_t holder = word & kLifeHolder;
  if (holder == 0) {
    return (word & kLifeDied) != 0 ? Life::died : Life::free;
  }
  const bool gone =
      ::kill(static_cast<pid_t>(holder), 0) != 0 && errno == ESRCH;
  return gone ? Life::died : Life::held;
}

struct RobustLife::List {
  explicit List(std::atomic<std::uint32_t>&) {}
  void begin() {}
  void end(bool) {}
};

namespace {

std::uint32_t holder_id() {
  return static_cast<std::uint32_t>(::getpid()) & kLifeHolder;
}

} // namespace

#endif

RobustLife::RobustLife(std::atomic<std::uint32_t>& word)
    : word_(word), list_(std::make_unique<List>(word)) {}

RobustLife::~RobustLife() {
  leave();
}

bool RobustLife::take() {
  list_->begin();
  std::uint32_t seen = word_.load(std::memory_order_acquire);
  std::uint32_t mine = 0;
  do {
    if (life_of(seen) == Life::held) {
      list_->end(held_);
      return false;
    }
    mine = holder_id() | (seen & kLifeWaiters);
  } while (!word_.compare_exchange_weak(
      seen, mine, std::memory_order_acq_rel, std::memory_order_acquire));
  list_->end(true);
  held_ = true;
  futex_wake(word_);
  return true;
}

void RobustLife::leave() {
  if (!held_) {
    return;
  }
  list_->begin();
  word_.fetch_and(kLifeWaiters, std::memory_order_release);
  list_->end(false);
  held_ = false;
  futex_wake(word_);
}

} // namespace jlaunch
