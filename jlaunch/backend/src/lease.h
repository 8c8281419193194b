#pragma once

#include <cstdint>

/**
 * The rule by which a rank decides that its agent has been silent for too long.
 * Pure: no clock, no thread.
 *
 * A heartbeat that is older than the lease is not enough: if this process was
 * stopped (or the whole job was, by Ctrl-Z), an old heartbeat only says that
 * nobody looked. So the last stretch of the lease is a probation in slices, and
 * the lease lapses only if every slice ended about on time and brought no
 * heartbeat. After an interruption the probation begins anew, so the agent has
 * a fresh chance to beat.
 *
 * The agent must beat at least once in a probation, which is a quarter of the
 * lease or 5 s, whichever is less.
 */
namespace jlaunch {

class Lease {
 public:
  static constexpr std::uint64_t kForever = UINT64_MAX;
  static constexpr unsigned kSlices = 4;

  struct Step {
    bool lapsed = false;
    std::uint64_t wake_at_ns = kForever; // look again then, if not lapsed
  };

  /** What to do at `now`, the agent's last heartbeat being of `beat_ns`. Called
   *  again at the time it named, or earlier. */
  Step look(std::uint64_t now, std::uint64_t beat_ns, std::uint64_t lease_ns);

  /** Length of the probation at the end of a lease. */
  static std::uint64_t probation_ns(std::uint64_t lease_ns);

 private:
  bool on_probation_ = false;
  std::uint64_t beat_ns_ = 0;
  unsigned slices_ = 0;
  std::uint64_t slice_ends_ns_ = 0;
};

} // namespace jlaunch
