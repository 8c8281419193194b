#include "lease.h"

#include <algorithm>

namespace jlaunch {

namespace {

constexpr std::uint64_t kLongestProbation = 5'000'000'000;

} // namespace

std::uint64_t Lease::probation_ns(std::uint64_t lease_ns) {
  return std::min(lease_ns / 4, kLongestProbation);
}

Lease::Step Lease::look(
    std::uint64_t now,
    std::uint64_t beat_ns,
    std::uint64_t lease_ns) {
  if (lease_ns >= kForever - beat_ns) {
    on_probation_ = false;
    return {};
  }
  const std::uint64_t probation = probation_ns(lease_ns);
  const std::uint64_t starts = beat_ns + lease_ns - probation;
  if (now < starts) {
    on_probation_ = false;
    return {false, starts};
  }
  const std::uint64_t slice = std::max<std::uint64_t>(probation / kSlices, 1);
  const bool fresh = !on_probation_ || beat_ns != beat_ns_;
  const bool overslept = on_probation_ && now >= slice_ends_ns_ + slice;
  if (fresh || overslept) {
    on_probation_ = true;
    beat_ns_ = beat_ns;
    slices_ = 0;
    slice_ends_ns_ = now + slice;
  } else if (now >= slice_ends_ns_) {
    if (++slices_ == kSlices) {
      return {true, now};
    }
    slice_ends_ns_ = now + slice;
  }
  return {false, slice_ends_ns_};
}

} // namespace jlaunch
