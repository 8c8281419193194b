#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "group_cell.h"
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

  /** Where the open group is, and is not any more after leave(). */
  std::shared_ptr<GroupCell> cell() const;

  /** The first failure; kind none if there is none. Never throws. */
  Failure failure() const;

  /** Tells the control block that the program moves. Wait-free. */
  void report();

  /** The control block says that this signal makes the process write its
   *  stacks; 0: none does any more. */
  void arm_stack(std::uint32_t signal);

  /**
   * Leaves the group and frees the claim, at the end of the program. A
   * collective that is still running is broken, since nobody waits for its
   * result any more. Returns when the group's resources are released, or after
   * a second. Idempotent, any thread.
   */
  void leave();

  /** A span in seconds; infinite: zero, which stands for "never". */
  static std::chrono::nanoseconds duration(double seconds);

 private:
  /** What the keeper's thread shares with the rest. */
  struct Control;

  void require_owner() const;

  const std::int64_t pid_;
  std::shared_ptr<RankMapping> rank_;
  std::shared_ptr<HostMapping> host_;
  std::shared_ptr<GroupCell> cell_;
  std::shared_ptr<Control> control_;
  std::future<void> released_; // the group's resources
  std::unique_ptr<Keeper> keeper_;
};

} // namespace jlaunch
