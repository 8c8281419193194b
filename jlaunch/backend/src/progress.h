#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "contract.h"
#include "error.h"
#include "fabric.h"
#include "platform.h"
#include "wire.h"

/**
 * THE poll loop, and what it drives: a step. There is no other loop over
 * completions in the backend.
 *
 * A step is a collective as a state machine without input or output of its own:
 * it sends and receives frames of the fabric when told to, and says whether it
 * is done and for whom it waits. The loop polls, hands on what completed, obeys
 * the verdict, and rests when there is nothing to do: some polls, some yields,
 * then sleep on the bell. What it asks of its supervision is a template
 * parameter, so that a benchmark can hold the same loop against one without.
 */
namespace jlaunch {

/** What was called. */
struct Call {
  Collective kind = Collective::none;
  Dtype dtype = Dtype::float32;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0; // of the input (recv: of the output)
  std::uint64_t seq = 0;
  int peer = -1; // of a send or recv
};

/** A frame that does not belong to the call. */
struct Mismatch {
  int peer = -1;
  std::uint64_t here = 0; // fingerprints; equal if it is only out of order
  std::uint64_t there = 0;
  std::uint64_t seq_there = 0;
};

using RankMask = std::array<std::uint64_t, kMaskWords>;

class Step {
 public:
  explicit Step(const Call& call) : call_(call) {}
  virtual ~Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  /** Does all that can be done now: at the start, and whenever something
   *  completed. True if anything was. Never blocks, never throws. */
  virtual bool advance() = 0;
  virtual bool done() const = 0;
  /** True if it cannot be done without something from this rank. */
  virtual bool waits_for(int peer) const = 0;

  const Call& call() const {
    return call_;
  }
  const std::optional<Mismatch>& mismatch() const {
    return mismatch_;
  }

 protected:
  std::optional<Mismatch> mismatch_;

 private:
  Call call_;
};

/** Two words to sleep on: those in the control block, or our own. */
struct BellWords {
  std::atomic<std::uint32_t>* rung = nullptr;
  std::atomic<std::uint32_t>* sleepers = nullptr;

  void ring() const {
    rung->fetch_add(1, std::memory_order_seq_cst);
    futex_wake(*rung);
  }
};

/** How to be idle. Figures: docs/adr, waiting strategy. */
struct IdlePlan {
  int polls = 0; // empty ones, before the first yield
  int yields = 0; // before the first sleep
  bool bell = false; // peers ring: sleep until then, else for short naps

  /** For so many ranks on this host. */
  static IdlePlan for_ranks(int ranks, int cores, bool bell);
};

/** Naps of a loop whose peers cannot ring, growing while nothing comes. */
inline constexpr std::chrono::nanoseconds kShortestNap =
    std::chrono::microseconds(50);
inline constexpr std::chrono::nanoseconds kLongestNap =
    std::chrono::milliseconds(1);

/**
 * Supervision has:
 *   optional<Failure> begin(const Step&)   before anything is sent
 *   bool called() const                    cheap: judge() has something to say
 *   optional<Failure> judge(const Step&, bool& drain)   obey the verdict
 *   optional<Failure> rest(const Step&)    idle: look at the clock
 *   nanoseconds next_rest() const          how long a sleep may last
 *   void rested(nanoseconds meant)         after a sleep
 *   void moved()                           the step did something
 *   void end(const Step&)                  it is done
 *   Failure broken(const Step&, Failure)   a completion or a call failed
 *   Failure mismatch(const Step&)          a frame did not fit
 */
template <class Supervision>
class ProgressLoop {
 public:
  ProgressLoop(
      Fabric& fabric,
      Supervision& supervision,
      BellWords bell,
      IdlePlan plan)
      : fabric_(fabric),
        supervision_(supervision),
        bell_(bell),
        plan_(plan),
        linger_(!fabric.outlives_us()) {}

  /** Runs the step to its end; the failure if it cannot be reached. */
  std::optional<Failure> run(Step& step) {
    if (auto refused = supervision_.begin(step)) {
      return refused;
    }
    idle_ = 0;
    nap_ = kShortestNap;
    advance(step);
    for (;;) {
      if (auto broken = look(step)) {
        return broken;
      }
      if (done(step)) {
        supervision_.end(step);
        return std::nullopt;
      }
      if (supervision_.called()) [[unlikely]] {
        bool drain = false;
        if (auto verdict = supervision_.judge(step, drain)) {
          return drain && drained(step) ? std::nullopt : verdict;
        }
      }
      if (fabric_.poll() > 0) {
        advance(step);
      } else if (auto failure = be_idle(step)) {
        return failure;
      }
    }
  }

 private:
  void advance(Step& step) {
    idle_ = 0;
    if (step.advance()) {
      nap_ = kShortestNap;
      supervision_.moved();
    }
  }

  bool done(const Step& step) const {
    return step.done() && !(linger_ && !fabric_.all_sent());
  }

  std::optional<Failure> look(const Step& step) {
    if (fabric_.failure()) [[unlikely]] {
      return supervision_.broken(step, *fabric_.failure());
    }
    if (step.mismatch()) [[unlikely]] {
      return supervision_.mismatch(step);
    }
    return std::nullopt;
  }

  /** Takes what has already arrived; true if that was all it needed. */
  bool drained(Step& step) {
    while (fabric_.poll() > 0 && !fabric_.failure()) {
      step.advance();
    }
    if (fabric_.failure() || step.mismatch() || !step.done()) {
      return false;
    }
    supervision_.end(step);
    return true;
  }

  std::optional<Failure> be_idle(Step& step) {
    ++idle_;
    if (idle_ <= plan_.polls) {
      spin_pause();
      return std::nullopt;
    }
    if (idle_ <= plan_.polls + plan_.yields) {
      yield_thread();
      return std::nullopt;
    }
    if (auto failure = supervision_.rest(step)) {
      return failure;
    }
    sleep(step);
    return std::nullopt;
  }

  void sleep(Step& step) {
    const auto limit = supervision_.next_rest();
    const auto span = plan_.bell ? limit : std::min(nap_, limit);
    const auto seen = bell_.rung->load(std::memory_order_acquire);
    bell_.sleepers->fetch_add(1, std::memory_order_seq_cst);
    // Announced before this last look: a peer whose message the look misses
    // sees the announcement, and rings.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool arrived = fabric_.poll() > 0;
    if (!arrived && !supervision_.called()) {
      futex_wait(*bell_.rung, seen, span);
    }
    bell_.sleepers->fetch_sub(1, std::memory_order_relaxed);
    if (arrived) {
      advance(step);
    } else {
      supervision_.rested(span);
      nap_ = std::min(nap_ * 2, kLongestNap);
    }
  }

  Fabric& fabric_;
  Supervision& supervision_;
  const BellWords bell_;
  const IdlePlan plan_;
  const bool linger_; // a call's sends must have left before it returns
  int idle_ = 0;
  std::chrono::nanoseconds nap_ = kShortestNap;
};

} // namespace jlaunch
