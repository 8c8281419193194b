#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "mapping.h"

/**
 * The rank's keeper: one native thread, without the GIL, that holds the rank's
 * claim and is its last resort when the agent is gone.
 *
 * The claim. There is one live holder of a rank at a time. The thread takes the
 * claim as a robust futex, so whatever way the process ends, or if it calls
 * exec, the kernel marks the claim and the agent knows within 0.1 ms. A child
 * made by fork holds nothing: its copy of the object does nothing.
 *
 * The last resort. The thread sleeps until the agent dies or its lease lapses
 * (lease.h). Then: the callback, at once; SIGTERM to this process when it has
 * left its collective, or after 200 ms; SIGKILL after the job's grace, to the
 * process group if this process leads one, else to the process. Releasing the
 * claim does not stop that: a process without control ends.
 */
namespace jlaunch {

/** The rank is held by another live process, or the agent is gone: says who. */
class ClaimRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Keeper {
 public:
  /**
   * Told why control is lost: "the agent died" or "the lease lapsed…", one
   * line. Runs on the keeper's thread, without the GIL, at most once; must not
   * throw nor block. Never after release() has returned.
   */
  using OnControlLost = std::function<void(const std::string& why)>;

  /**
   * Claims the rank of `rank` for this process: the rank's half of the block is
   * reset, phase is `claimed`, the doorbell rings. Returns when the claim is
   * held. Throws ClaimRefused, or std::system_error where the system has no
   * robust futexes (every Linux since 2.6.17 has).
   */
  static std::unique_ptr<Keeper> claim(
      std::shared_ptr<RankMapping> rank,
      std::shared_ptr<HostMapping> host,
      OnControlLost on_control_lost);

  /** As release(). */
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /** Leaves cleanly: phase is `leaving`, the claim is free, the doorbell rings.
   *  Idempotent; nothing in a child made by fork. Any thread but the keeper's. */
  void release();

  /** Sets the phase of this rank and rings the doorbell. */
  void enter(Phase phase);

 private:
  struct State;
  explicit Keeper(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

} // namespace jlaunch
