#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "group.h"
#include "keeper.h"
#include "mapping.h"

/**
 * This process as a rank of the job: its claim, its control block and its world
 * group. Knows neither MLX nor Python. One in a process. A child made by fork
 * inherits the object but not the rank: there every call throws
 * std::logic_error, and leave() and the destructor do nothing.
 */
namespace jlaunch {

class Membership {
 public:
  /** Maps the two blocks and claims the rank. Throws BlockError,
   *  std::system_error, and ClaimRefused, which names the holder. */
  Membership(const std::string& rank_block, const std::string& host_block);

  /** Leaves. */
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  /** Opens the world group; the blocks and their path are filled in here.
   *  Throws VerbsError, and ControlLost if the agent is gone by now. */
  void open(GroupConfig config);

  /** As the group's, which must be open. */
  std::vector<std::byte> address() const;
  void connect(std::span<const std::vector<std::byte>> addresses);

  /** `init` is about to return: all ranks are connected. */
  void formed();

  /** The open group. Throws std::logic_error before open() and after leave(). */
  std::shared_ptr<Group> group() const;

  /** The first failure; kind none if there is none. Never throws. */
  Failure failure() const;

  /** Tells the control block that the program moves. Wait-free. */
  void report();

  /**
   * Leaves the group and frees the claim, at the end of the program. A
   * collective that is still running is broken: nobody waits for its result any
   * more. Idempotent, any thread.
   */
  void leave();

  /** A span in seconds; infinite: zero, which stands for "never". */
  static std::chrono::nanoseconds duration(double seconds);

 private:
  /** Shared with the keeper's thread. */
  struct Shared {
    std::mutex mutex;
    std::shared_ptr<Group> group;
    Failure control_lost;
  };

  void require_owner() const;

  const std::int64_t pid_;
  std::shared_ptr<RankMapping> rank_;
  std::shared_ptr<HostMapping> host_;
  std::shared_ptr<Shared> shared_;
  std::unique_ptr<Keeper> keeper_;
};

} // namespace jlaunch
