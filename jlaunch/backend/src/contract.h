#pragma once

#include <cstddef>
#include <cstdint>

/**
 * Names and numbers that the C++ backend shares with the Python launcher.
 * The other half is jlaunch/core/contract.py; a test compares the two.
 */
namespace jlaunch {

inline constexpr std::size_t kMaxRanks = 1024;
inline constexpr std::size_t kControlBlockBytes = 16384;

/** Why a rank is lost. */
enum class Reason : std::uint8_t {
  none = 0,
  exited = 1,
  killed = 2,
  paused = 3,
  host_lost = 4,
  stuck = 5,
  desync = 6,
  init_failed = 7,
  control_lost = 8,
};

/** What a rank is told in its control block. */
enum class VerdictKind : std::uint32_t {
  none = 0,
  keep_waiting = 1,
  raise = 2,
  stop = 3,
};

/** MLX's collectives, as numbered in the wire header and the control block. */
enum class Collective : std::uint32_t {
  none = 0,
  all_sum = 1,
  all_max = 2,
  all_min = 3,
  all_gather = 4,
  sum_scatter = 5,
  send = 6,
  recv = 7,
};

/** How far the process that holds a rank's claim has got. */
enum class Phase : std::uint32_t {
  none = 0,
  claimed = 1,
  joining = 2,
  formed = 3,
  leaving = 4,
};

} // namespace jlaunch
