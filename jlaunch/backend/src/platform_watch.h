#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "platform.h"

/**
 * What the watching threads need from the system beyond platform.h: a
 * descriptor that wakes an event loop, threads that take no signals, and a wait
 * for the end of whoever holds a life word (robust_life.h).
 */
namespace jlaunch {

/** A descriptor that becomes readable: eventfd, or a pipe on macOS. */
class WakeFd {
 public:
  WakeFd();
  ~WakeFd();
  WakeFd(const WakeFd&) = delete;
  WakeFd& operator=(const WakeFd&) = delete;

  /** For poll and the like; read it with drain() only. */
  int fd() const {
    return read_;
  }

  /** Makes the descriptor readable. Any thread; never blocks. */
  void raise();

  /** Makes it unreadable until the next raise(). Never blocks. */
  void drain();

 private:
  int read_ = -1;
  int write_ = -1;
};

/**
 * Blocks all signals in the calling thread for its lifetime: a thread started
 * meanwhile takes none, so that handlers stay with the program's own threads.
 */
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  struct Mask;
  std::unique_ptr<Mask> before_;
};

/** How a vigil ended. */
enum class VigilEnd { died, timeout, interrupted };

/**
 * Waits for the end of the holder of a life word. One thread waits; any thread
 * may interrupt, once and for good. On Linux the kernel wakes only one of the
 * sleepers of a dead holder's word: the vigil wakes the others. (If that one
 * belongs to a stopped process, the others learn of it when it is continued.)
 */
class Vigil {
 public:
  /** `many_words`: whether it may sleep on two words at once. Without that an
   *  interrupt wakes all sleepers of the life word, for a moment each. */
  explicit Vigil(
      std::atomic<std::uint32_t>& life,
      bool many_words = has_futex_wait_any());
  ~Vigil();
  Vigil(const Vigil&) = delete;
  Vigil& operator=(const Vigil&) = delete;

  /** Until a time of monotonic_ns(); UINT64_MAX: no bound. */
  VigilEnd wait_until(std::uint64_t when_ns);

  void interrupt();

 private:
  struct System;

  std::atomic<std::uint32_t>& life_;
  [[maybe_unused]] const bool many_words_;
  std::atomic<std::uint32_t> interrupted_{0}; // futex word
  std::unique_ptr<System> system_;
};

} // namespace jlaunch
