#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

/**
 * What differs between Linux and macOS, and nothing else: waiting on a word of
 * shared memory, the clock, the names of the verbs library. Both branches are
 * in platform.cpp. Everything here may be called by any thread.
 */
namespace jlaunch {

/**
 * Nanoseconds of the monotonic clock that stands still while the machine
 * sleeps (CLOCK_MONOTONIC on Linux, CLOCK_UPTIME_RAW on macOS): a laptop's lid
 * must not look like a pause. Equal to Python's time.monotonic_ns(), so that
 * agent and rank can compare figures.
 */
std::uint64_t monotonic_ns();

/** How a futex_wait ended. */
enum class Wake {
  woken, // by futex_wake, or spuriously (a signal): look again
  timeout, // the span has passed
  changed, // the word was not (or no longer) as expected: did not sleep
};

/** Wait without a timeout. */
inline constexpr std::chrono::nanoseconds kForever{-1};

/**
 * Sleeps while `word` equals `expected`, for at most `timeout` (kForever: no
 * bound). The word may lie in memory shared between processes: its key is the
 * file page, not the address.
 */
Wake futex_wait(
    const std::atomic<std::uint32_t>& word,
    std::uint32_t expected,
    std::chrono::nanoseconds timeout = kForever);

/** Wakes up to `n` sleepers of `word`, in any process (macOS: one or all). */
void futex_wake(const std::atomic<std::uint32_t>& word, int n = INT32_MAX);

/** A word to sleep on and the value that keeps one asleep. */
struct FutexWaiter {
  const std::atomic<std::uint32_t>* word = nullptr;
  std::uint32_t expected = 0;
};

/** The most words that one futex_wait_any takes (the kernel's limit). */
inline constexpr std::size_t kMaxFutexWaiters = 128;

/** True where futex_wait_any works (Linux 5.16 and later; not macOS). */
bool has_futex_wait_any();

/**
 * Sleeps until any of the words is woken or is not as expected. Throws
 * std::system_error where the system cannot (see has_futex_wait_any), or if
 * `waiters` is empty or has more than kMaxFutexWaiters entries.
 */
Wake futex_wait_any(
    std::span<const FutexWaiter> waiters,
    std::chrono::nanoseconds timeout = kForever);

/** Tells the core that this is a spin loop. */
inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/** Gives the core to another thread that is ready to run, if there is one. */
void yield_thread();

/** The kernel's id of the calling thread, as robust futexes hold it. */
std::uint32_t thread_id();

/** A number that is another one in a forked child: what a parent owns (shared
 *  mappings, queue pairs) is not the child's to use or to close. Costs a load. */
std::uint32_t process_generation();

/** Cores that this process may run on, at least 1. */
int usable_cores();

/** Where the system keeps its verbs library, best first. */
std::span<const char* const> system_verbs_libraries();

/** What a shared library's name ends with: ".so" or ".dylib". */
extern const std::string_view kSharedLibrarySuffix;

/**
 * Makes [offset, offset + bytes) of a file real, so that a full file system is
 * an error here and never a SIGBUS later. Returns 0 or an errno.
 */
int reserve_file(int fd, std::size_t offset, std::size_t bytes);

} // namespace jlaunch
