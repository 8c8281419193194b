#pragma once

#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "group.h"

/**
 * The group that this process is in, if any: the one place from which it can be
 * taken away. Whoever uses it holds a shared_ptr for as long as one call, so
 * that after close() the group's resources are released as soon as the running
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

  /** Takes the group away, for good: the process is exiting. */
  std::shared_ptr<Group> close() {
    std::lock_guard lock(mutex_);
    is_closed_ = true;
    return std::exchange(group_, nullptr);
  }

  bool is_closed() const {
    std::lock_guard lock(mutex_);
    return is_closed_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Group> group_;
  bool is_closed_ = false;
};

} // namespace jlaunch
