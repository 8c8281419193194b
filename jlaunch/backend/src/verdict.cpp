#include "verdict.h"

#include <bit>

namespace jlaunch {

Verdict VerdictReader::copy() const {
  const VerdictPart& part = block_->verdict;
  Verdict out;
  out.kind =
      static_cast<VerdictKind>(part.kind.load(std::memory_order_relaxed));
  out.number = part.verdict.load(std::memory_order_relaxed);
  for (std::size_t word = 0; word < kMaskWords; ++word) {
    auto mask = part.lost[word].load(std::memory_order_relaxed);
    const auto clean = part.clean[word].load(std::memory_order_relaxed);
    while (mask != 0) {
      const auto bit = static_cast<std::size_t>(std::countr_zero(mask));
      const auto rank = word * 64 + bit;
      out.losses.push_back(
          {static_cast<int>(rank),
           static_cast<Reason>(
               part.reason[rank].load(std::memory_order_relaxed)),
           part.completed_seq[rank].load(std::memory_order_relaxed),
           ((clean >> bit) & 1U) != 0});
      mask &= mask - 1;
    }
  }
  return out;
}

bool VerdictReader::read(Verdict& out) {
  const VerdictPart& part = block_->verdict;
  const auto before = part.lock.load(std::memory_order_acquire);
  Verdict copied = copy();
  std::atomic_thread_fence(std::memory_order_acquire);
  const bool whole =
      (before & 1U) == 0 && part.lock.load(std::memory_order_relaxed) == before;
  if (!whole && ++torn_ < kPatience) {
    return false;
  }
  torn_ = 0;
  seen_ = copied.number;
  out = std::move(copied);
  return true;
}

} // namespace jlaunch
