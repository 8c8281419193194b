#pragma once

#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "group.h"

/**
 * The group that this process is in, if any: the one place from which it can be
 * taken away. Whoever uses it holds a shared_ptr for as long as one call, so
 * that after take() the group's resources are released as soon as the running
 * collective has ended, however many arrays still refer to the group. Any
 * thread.
 */
namespace jlaunch {

class GroupCell {
 public:
  void put(std::shared_ptr<Group> group) {
    std::lock_guard lock(mutex_);
    group_ = std::move(group);
  }

  /** Null if there is none. */
  std::shared_ptr<Group> get() const {
    std::lock_guard lock(mutex_);
    return group_;
  }

  /** Throws std::runtime_error if there is none. */
  std::shared_ptr<Group> require() const {
    auto group = get();
    if (!group) {
      throw std::runtime_error(
          "[jlaunch] this process has no group: it is exiting, or init failed");
    }
    return group;
  }

  std::shared_ptr<Group> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(group_, nullptr);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Group> group_;
};

} // namespace jlaunch
