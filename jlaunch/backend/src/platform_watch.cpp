#include "platform_watch.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <sys/event.h>
#else
#include <sys/eventfd.h>
#endif

#include "robust_life.h"

namespace jlaunch {

namespace {

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::chrono::nanoseconds span_until(std::uint64_t when_ns, std::uint64_t now) {
  // A bound far below the system's largest time: the caller looks again.
  constexpr std::uint64_t longest = 1'000'000'000ULL * 86'400;
  const std::uint64_t span = when_ns > now ? when_ns - now : 0;
  return std::chrono::nanoseconds(
      static_cast<std::int64_t>(span < longest ? span : longest));
}

} // namespace

struct SignalsBlocked::Mask {
  sigset_t set{};
};

SignalsBlocked::SignalsBlocked() : before_(std::make_unique<Mask>()) {
  sigset_t all{};
  sigfillset(&all); // a macro on macOS
  ::pthread_sigmask(SIG_SETMASK, &all, &before_->set);
}

SignalsBlocked::~SignalsBlocked() {
  ::pthread_sigmask(SIG_SETMASK, &before_->set, nullptr);
}

#if defined(__APPLE__)

WakeFd::WakeFd() {
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) {
    throw_errno("pipe");
  }
  read_ = ends[0];
  write_ = ends[1];
  for (const int end : ends) {
    ::fcntl(end, F_SETFD, FD_CLOEXEC);
    ::fcntl(end, F_SETFL, O_NONBLOCK);
  }
}

WakeFd::~WakeFd() {
  ::close(read_);
  ::close(write_);
}

void WakeFd::raise() {
  const char byte = 1;
  // A full pipe is readable already.
  (void)!::write(write_, &byte, 1);
}

void WakeFd::drain() {
  char bytes[256];
  while (::read(read_, bytes, sizeof(bytes)) > 0) {}
}

/** A kernel queue: the end of the holder's process, and our interrupt. */
struct Vigil::System {
  int queue = ::kqueue();
  bool watching = false;

  System() {
    if (queue < 0) {
      throw_errno("kqueue");
    }
    struct kevent change{};
    EV_SET(&change, 0, EVFILT_USER, EV_ADD | EV_CLEAR, 0, 0, nullptr);
    ::kevent(queue, &change, 1, nullptr, 0, nullptr);
  }
  ~System() {
    ::close(queue);
  }
  System(const System&) = delete;
  System& operator=(const System&) = delete;

  void watch(std::uint32_t pid) {
    if (!watching) {
      struct kevent change{};
      EV_SET(&change, pid, EVFILT_PROC, EV_ADD, NOTE_EXIT, 0, nullptr);
      watching = ::kevent(queue, &change, 1, nullptr, 0, nullptr) == 0;
    }
  }

  void wake() {
    struct kevent change{};
    EV_SET(&change, 0, EVFILT_USER, 0, NOTE_TRIGGER, 0, nullptr);
    ::kevent(queue, &change, 1, nullptr, 0, nullptr);
  }

  void sleep(std::chrono::nanoseconds span) {
    timespec limit{};
    limit.tv_sec = static_cast<time_t>(span.count() / 1'000'000'000);
    limit.tv_nsec = static_cast<long>(span.count() % 1'000'000'000);
    struct kevent event{};
    ::kevent(queue, nullptr, 0, &event, 1, &limit);
  }
};

VigilEnd Vigil::wait_until(std::uint64_t when_ns) {
  for (;;) {
    if (interrupted_.load() != 0) {
      return VigilEnd::interrupted;
    }
    const std::uint32_t word = life_.load();
    system_->watch(word & kLifeHolder);
    if (life_of(word) != Life::held) {
      return VigilEnd::died;
    }
    const std::uint64_t now = monotonic_ns();
    if (now >= when_ns) {
      return VigilEnd::timeout;
    }
    system_->sleep(span_until(when_ns, now));
  }
}

void Vigil::interrupt() {
  interrupted_.store(1);
  system_->wake();
}

#else

WakeFd::WakeFd() : read_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (read_ < 0) {
    throw_errno("eventfd");
  }
  write_ = read_;
}

WakeFd::~WakeFd() {
  ::close(read_);
}

void WakeFd::raise() {
  const std::uint64_t one = 1;
  // Fails only if the counter is full, and then the descriptor is readable.
  (void)!::write(write_, &one, sizeof(one));
}

void WakeFd::drain() {
  std::uint64_t count = 0;
  (void)!::read(read_, &count, sizeof(count));
}

struct Vigil::System {};

VigilEnd Vigil::wait_until(std::uint64_t when_ns) {
  for (;;) {
    std::uint32_t word = life_.load();
    if (life_of(word) != Life::held) {
      futex_wake(life_);
      return interrupted_.load() != 0 ? VigilEnd::interrupted : VigilEnd::died;
    }
    if ((word & kLifeWaiters) == 0 &&
        !life_.compare_exchange_strong(word, word | kLifeWaiters)) {
      continue;
    }
    // Only now: without many words interrupt() raises the flag and then takes
    // the bit away, so either the flag is seen here or the word is not as
    // expected below.
    if (interrupted_.load() != 0) {
      return VigilEnd::interrupted;
    }
    const std::uint64_t now = monotonic_ns();
    if (now >= when_ns) {
      return VigilEnd::timeout;
    }
    const FutexWaiter words[] = {
        {&life_, word | kLifeWaiters}, {&interrupted_, 0}};
    if (many_words_) {
      futex_wait_any(words, span_until(when_ns, now));
    } else {
      futex_wait(life_, words[0].expected, span_until(when_ns, now));
    }
  }
}

void Vigil::interrupt() {
  interrupted_.store(1);
  futex_wake(interrupted_);
  if (!many_words_) {
    life_.fetch_and(~kLifeWaiters);
    futex_wake(life_); // all of them: the others set the bit again
  }
}

#endif

Vigil::Vigil(std::atomic<std::uint32_t>& life, bool many_words)
    : life_(life),
      many_words_(many_words),
      system_(std::make_unique<System>()) {}

Vigil::~Vigil() = default;

} // namespace jlaunch
