#pragma once

#include <cstdint>
#include <vector>

#include "control_block.h"
#include "error.h"

/**
 * Reads the agent's half of the control block. The common case is one relaxed
 * load (changed); a change is then read as a seqlock, with a bound, since the
 * agent may be frozen or dead in the middle of writing.
 */
namespace jlaunch {

struct Loss {
  int world_rank = -1;
  Reason reason = Reason::none;
  std::uint64_t completed_seq = 0; // last collective of the world it finished
  bool clean = false; // it exited with 0
};

struct Verdict {
  VerdictKind kind = VerdictKind::none;
  std::uint32_t number = 0;
  std::vector<Loss> losses; // by rank, ascending
};

class VerdictReader {
 public:
  explicit VerdictReader(const ControlBlock* block) : block_(block) {}

  /** True if there is a verdict that read() has not returned. */
  bool changed() const {
    return block_ != nullptr &&
        block_->verdict.verdict.load(std::memory_order_relaxed) != seen_;
  }

  /** The standing verdict; false if it is being written just now (try again on
   *  the next turn; after kPatience tries it is taken as it is). */
  bool read(Verdict& out);

  /** The last question that was answered with "keep waiting". */
  std::uint32_t answered() const {
    return block_ != nullptr
        ? block_->verdict.answered.load(std::memory_order_acquire)
        : 0;
  }

 private:
  static constexpr int kPatience = 1000;

  Verdict copy() const;

  const ControlBlock* block_;
  std::uint32_t seen_ = 0;
  int torn_ = 0;
};

} // namespace jlaunch
