#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "platform.h"

/**
 * Patience: how long we have waited without progress, as far as we were awake
 * to see it. A process that was stopped (SIGSTOP, a debugger, a closed lid)
 * finds on waking that much time has passed; none of it was anybody's silence.
 * So each step between two looks at the clock counts for no more than it was
 * meant to take, plus some slack for a busy machine.
 */
namespace jlaunch {

class Patience {
 public:
  using Span = std::chrono::nanoseconds;

  /** A step may be late by so much and still count in full. */
  static constexpr Span kSlack = std::chrono::milliseconds(100);

  /** `limit` zero or negative: never out of patience. */
  explicit Patience(Span limit) : limit_(limit) {}

  /** Something moved: nothing waited yet. Costs no look at the clock. */
  void restart() {
    waited_ = Span::zero();
    running_ = false;
  }

  /** Counts the time since the last tick, of which `meant` was intended. */
  void tick(Span meant = Span::zero()) {
    tick_at(monotonic_ns(), meant);
  }

  /** As tick, at a given time of the monotonic clock. */
  void tick_at(std::uint64_t now_ns, Span meant) {
    if (running_ && now_ns > last_ns_) {
      const Span passed(static_cast<std::int64_t>(now_ns - last_ns_));
      waited_ += std::min(passed, meant + kSlack);
    }
    running_ = true;
    last_ns_ = now_ns;
  }

  Span waited() const {
    return waited_;
  }
  /** Time of the last tick. */
  std::uint64_t now_ns() const {
    return last_ns_;
  }
  bool limited() const {
    return limit_ > Span::zero();
  }
  bool exhausted() const {
    return limited() && waited_ >= limit_;
  }
  /** How long one may sleep before looking again. Some steps per limit, so
   *  that a stop during the sleep is counted as at most one of them. */
  Span next_step() const {
    constexpr Span longest = std::chrono::seconds(1);
    constexpr Span shortest = std::chrono::milliseconds(1);
    if (!limited()) {
      return longest;
    }
    return std::clamp(
        std::min(limit_ / 8, limit_ - waited_), shortest, longest);
  }

 private:
  Span limit_;
  Span waited_{};
  std::uint64_t last_ns_ = 0;
  bool running_ = false;
};

} // namespace jlaunch
