#include "platform.h"

#include <cerrno>
#include <ctime>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <os/os_sync_wait_on_address.h>
#else
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace jlaunch {

static_assert(
    sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
        std::atomic<std::uint32_t>::is_always_lock_free,
    "a futex word is handed to the kernel as it is");

namespace {

constexpr std::uint64_t kNsPerS = 1'000'000'000;

void* address_of(const std::atomic<std::uint32_t>& word) {
  // The kernel reads the word and never writes it.
  return const_cast<std::atomic<std::uint32_t>*>(&word);
}

} // namespace

void yield_thread() {
  sched_yield();
}

std::uint32_t process_generation() {
  static std::atomic<std::uint32_t> generation{1};
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    generation.fetch_add(1, std::memory_order_relaxed);
  });
  return registered == 0 ? generation.load(std::memory_order_relaxed) : 0;
}

#if defined(__APPLE__)

const std::string_view kSharedLibrarySuffix = ".dylib";

std::uint64_t monotonic_ns() {
  return clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
}

Wake futex_wait(
    const std::atomic<std::uint32_t>& word,
    std::uint32_t expected,
    std::chrono::nanoseconds timeout) {
  if (word.load(std::memory_order_acquire) != expected) {
    return Wake::changed;
  }
  int result = 0;
  if (timeout == kForever) {
    result = os_sync_wait_on_address(
        address_of(word),
        expected,
        sizeof(std::uint32_t),
        OS_SYNC_WAIT_ON_ADDRESS_SHARED);
  } else if (timeout.count() <= 0) {
    return Wake::timeout; // the call below refuses a span of zero
  } else {
    result = os_sync_wait_on_address_with_timeout(
        address_of(word),
        expected,
        sizeof(std::uint32_t),
        OS_SYNC_WAIT_ON_ADDRESS_SHARED,
        OS_CLOCK_MACH_ABSOLUTE_TIME,
        static_cast<std::uint64_t>(timeout.count()));
  }
  return result < 0 && errno == ETIMEDOUT ? Wake::timeout : Wake::woken;
}

void futex_wake(const std::atomic<std::uint32_t>& word, int n) {
  if (n == 1) {
    os_sync_wake_by_address_any(
        address_of(word),
        sizeof(std::uint32_t),
        OS_SYNC_WAKE_BY_ADDRESS_SHARED);
  } else {
    os_sync_wake_by_address_all(
        address_of(word),
        sizeof(std::uint32_t),
        OS_SYNC_WAKE_BY_ADDRESS_SHARED);
  }
}

bool has_futex_wait_any() {
  return false;
}

Wake futex_wait_any(std::span<const FutexWaiter>, std::chrono::nanoseconds) {
  throw std::system_error(
      ENOSYS, std::generic_category(), "waiting on several words");
}

std::uint32_t thread_id() {
  std::uint64_t id = 0;
  pthread_threadid_np(nullptr, &id);
  return static_cast<std::uint32_t>(id);
}

int usable_cores() {
  const auto cores = std::thread::hardware_concurrency();
  return cores > 0 ? static_cast<int>(cores) : 1;
}

std::span<const char* const> system_verbs_libraries() {
  static constexpr const char* names[] = {
      "librdma.dylib", "/usr/lib/librdma.dylib"};
  return names;
}

int reserve_file(int fd, std::size_t offset, std::size_t bytes) {
  fstore_t store{};
  store.fst_flags = F_ALLOCATEALL;
  store.fst_posmode = F_PEOFPOSMODE;
  store.fst_length = static_cast<off_t>(bytes);
  if (fcntl(fd, F_PREALLOCATE, &store) != 0) {
    return errno;
  }
  return ftruncate(fd, static_cast<off_t>(offset + bytes)) == 0 ? 0 : errno;
}

#else

const std::string_view kSharedLibrarySuffix = ".so";

namespace {

timespec to_timespec(std::chrono::nanoseconds span) {
  const auto ns =
      span.count() > 0 ? static_cast<std::uint64_t>(span.count()) : 0;
  timespec out{};
  out.tv_sec = static_cast<std::time_t>(ns / kNsPerS);
  out.tv_nsec = static_cast<long>(ns % kNsPerS);
  return out;
}

/** The result of a futex call (errno if negative), in our words. */
Wake wake_of(long result) {
  if (result >= 0 || errno == EINTR) {
    return Wake::woken;
  }
  if (errno == EAGAIN) {
    return Wake::changed;
  }
  if (errno == ETIMEDOUT) {
    return Wake::timeout;
  }
  throw std::system_error(errno, std::generic_category(), "futex");
}

} // namespace

std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * kNsPerS +
      static_cast<std::uint64_t>(now.tv_nsec);
}

Wake futex_wait(
    const std::atomic<std::uint32_t>& word,
    std::uint32_t expected,
    std::chrono::nanoseconds timeout) {
  const timespec span = to_timespec(timeout);
  return wake_of(syscall(
      SYS_futex,
      address_of(word),
      FUTEX_WAIT,
      expected,
      timeout == kForever ? nullptr : &span,
      nullptr,
      0));
}

void futex_wake(const std::atomic<std::uint32_t>& word, int n) {
  syscall(SYS_futex, address_of(word), FUTEX_WAKE, n, nullptr, nullptr, 0);
}

// Debian 12's headers know futex_waitv; the layout is the kernel's ABI.
#if !defined(SYS_futex_waitv)
#define SYS_futex_waitv 449
#endif

namespace {

struct KernelWaiter {
  std::uint64_t value;
  std::uint64_t address;
  std::uint32_t flags;
  std::uint32_t reserved;
};

constexpr std::uint32_t kFutex32 = 2; // a word of 32 bits, not private

} // namespace

bool has_futex_wait_any() {
  static const bool has = [] {
    // An empty vector is EINVAL where the call exists.
    return syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, 0) < 0 &&
        errno != ENOSYS;
  }();
  return has;
}

Wake futex_wait_any(
    std::span<const FutexWaiter> waiters,
    std::chrono::nanoseconds timeout) {
  if (waiters.empty() || waiters.size() > kMaxFutexWaiters) {
    throw std::system_error(
        EINVAL, std::generic_category(), "waiting on several words");
  }
  KernelWaiter list[kMaxFutexWaiters];
  for (std::size_t i = 0; i < waiters.size(); ++i) {
    list[i] = KernelWaiter{
        waiters[i].expected,
        reinterpret_cast<std::uintptr_t>(waiters[i].word),
        kFutex32,
        0};
  }
  timespec until{};
  if (timeout != kForever) {
    const auto span = timeout.count() > 0 ? timeout : timeout.zero();
    until = to_timespec(
        std::chrono::nanoseconds(static_cast<std::int64_t>(monotonic_ns())) +
        span);
  }
  return wake_of(syscall(
      SYS_futex_waitv,
      list,
      waiters.size(),
      0,
      timeout == kForever ? nullptr : &until,
      CLOCK_MONOTONIC));
}

std::uint32_t thread_id() {
  // Not cached: a fork would inherit its parent's.
  return static_cast<std::uint32_t>(syscall(SYS_gettid));
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    const int cores = CPU_COUNT(&set);
    return cores > 0 ? cores : 1;
  }
  const auto cores = std::thread::hardware_concurrency();
  return cores > 0 ? static_cast<int>(cores) : 1;
}

std::span<const char* const> system_verbs_libraries() {
  static constexpr const char* names[] = {"libibverbs.so.1"};
  return names;
}

int reserve_file(int fd, std::size_t offset, std::size_t bytes) {
  int error = 0;
  do {
    error = posix_fallocate(
        fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

#endif

} // namespace jlaunch
