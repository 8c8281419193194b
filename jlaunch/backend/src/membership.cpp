#include "membership.h"

#include <cmath>
#include <stdexcept>
#include <utility>

#include <unistd.h>

namespace jlaunch {

namespace {

/** Longer than any job; times beyond it do not fit into nanoseconds. */
constexpr double kForeverSeconds = 1e9;

Failure lost_control(const std::string& why, std::uint32_t epoch) {
  Failure failure;
  failure.kind = Failure::Kind::control_lost;
  failure.epoch = epoch;
  failure.detail =
      "control of this rank is lost: " + why + ": the process is being ended";
  return failure;
}

/** A child made by fork shares what the group has mapped with its parent, so it
 *  must not tear it down: the reference is kept for ever. */
void keep_for_ever(std::shared_ptr<Group> group) {
  static auto* kept = new std::vector<std::shared_ptr<Group>>;
  kept->push_back(std::move(group));
}

} // namespace

Membership::Membership(
    const std::string& rank_block,
    const std::string& host_block)
    : pid_(getpid()),
      rank_(RankMapping::open(rank_block)),
      host_(HostMapping::open(host_block)),
      shared_(std::make_shared<Shared>()) {
  const auto on_control_lost = [shared = shared_,
                                rank = rank_](const std::string& why) {
    const auto failure =
        lost_control(why, rank->block().rank_part.epoch.load());
    std::shared_ptr<Group> group;
    {
      std::lock_guard lock(shared->mutex);
      shared->control_lost = failure;
      group = shared->group;
    }
    if (group) {
      group->abort(failure);
    }
  };
  keeper_ = Keeper::claim(rank_, host_, on_control_lost);
}

Membership::~Membership() {
  if (getpid() != pid_) {
    keep_for_ever(std::move(shared_->group));
    return;
  }
  leave();
}

void Membership::open(GroupConfig config) {
  require_owner();
  config.block = &rank_->block();
  config.host_block = &host_->block();
  config.block_path = rank_->path();
  std::shared_ptr<Group> group = Group::open(std::move(config));
  std::lock_guard lock(shared_->mutex);
  if (shared_->control_lost) {
    throw_failure(shared_->control_lost);
  }
  shared_->group = std::move(group);
  keeper_->enter(Phase::joining);
}

std::vector<std::byte> Membership::address() const {
  return group()->address();
}

void Membership::connect(std::span<const std::vector<std::byte>> addresses) {
  group()->connect(addresses);
}

void Membership::formed() {
  require_owner();
  keeper_->enter(Phase::formed);
}

std::shared_ptr<Group> Membership::group() const {
  require_owner();
  std::lock_guard lock(shared_->mutex);
  if (!shared_->group) {
    throw std::logic_error("[jlaunch] the group of this rank is not open");
  }
  return shared_->group;
}

Failure Membership::failure() const {
  std::shared_ptr<Group> group;
  {
    std::lock_guard lock(shared_->mutex);
    if (shared_->control_lost) {
      return shared_->control_lost;
    }
    group = shared_->group;
  }
  return group ? group->failure() : Failure{};
}

void Membership::report() {
  require_owner();
  rank_->block().rank_part.reports.fetch_add(1, std::memory_order_relaxed);
}

void Membership::leave() {
  if (getpid() != pid_) {
    return;
  }
  std::shared_ptr<Group> group;
  {
    std::lock_guard lock(shared_->mutex);
    group = std::exchange(shared_->group, nullptr);
  }
  if (group) {
    Failure leaving;
    leaving.kind = Failure::Kind::job_stopping;
    leaving.epoch = group->epoch();
    leaving.detail = "this rank is exiting";
    group->abort(leaving);
  }
  keeper_->release();
}

std::chrono::nanoseconds Membership::duration(double seconds) {
  if (!(seconds < kForeverSeconds)) {
    return {};
  }
  return std::chrono::nanoseconds(std::llround(seconds * 1e9));
}

void Membership::require_owner() const {
  if (getpid() != pid_) {
    throw std::logic_error(
        "[jlaunch] the rank belongs to process " + std::to_string(pid_) +
        ", which forked this one: only that process may communicate");
  }
}

} // namespace jlaunch
