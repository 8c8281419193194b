#include "membership.h"

#include <cmath>
#include <mutex>
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

constexpr auto kReleaseLimit = std::chrono::seconds(1);

} // namespace

struct Membership::Control {
  std::mutex mutex;
  Failure lost; // kind none while the agent is there
};

Membership::Membership(
    const std::string& rank_block,
    const std::string& host_block)
    : pid_(getpid()),
      rank_(RankMapping::open(rank_block)),
      host_(HostMapping::open(host_block)),
      cell_(std::make_shared<GroupCell>()),
      control_(std::make_shared<Control>()) {
  const auto on_control_lost =
      [rank = rank_, cell = cell_, control = control_](const std::string& why) {
        const auto epoch = rank->block().rank_part.epoch.load();
        std::lock_guard lock(control->mutex);
        control->lost = lost_control(why, epoch);
        if (auto group = cell->get()) {
          group->abort(control->lost);
        }
      };
  keeper_ = Keeper::claim(rank_, host_, on_control_lost);
}

Membership::~Membership() {
  if (getpid() != pid_) {
    keep_for_ever(cell_->close());
    return;
  }
  leave();
}

void Membership::open(GroupConfig config) {
  require_owner();
  config.block = &rank_->block();
  config.host_block = &host_->block();
  config.block_path = rank_->path();
  auto opened = Group::open(std::move(config));
  auto released = std::make_shared<std::promise<void>>();
  released_ = released->get_future();
  std::shared_ptr<Group> group(opened.release(), [released](Group* last) {
    std::default_delete<Group>()(last);
    released->set_value();
  });
  std::lock_guard lock(control_->mutex);
  if (control_->lost) {
    throw_failure(control_->lost);
  }
  cell_->put(std::move(group));
  keeper_->enter(Phase::joining);
}

std::vector<std::byte> Membership::address() const {
  require_owner();
  return cell_->require()->address();
}

void Membership::connect(std::span<const std::vector<std::byte>> addresses) {
  require_owner();
  cell_->require()->connect(addresses);
}

void Membership::formed() {
  require_owner();
  keeper_->enter(Phase::formed);
}

std::shared_ptr<GroupCell> Membership::cell() const {
  require_owner();
  return cell_;
}

Failure Membership::failure() const {
  {
    std::lock_guard lock(control_->mutex);
    if (control_->lost) {
      return control_->lost;
    }
  }
  const auto group = cell_->get();
  return group ? group->failure() : Failure{};
}

void Membership::report() {
  require_owner();
  rank_->block().rank_part.reports.fetch_add(1, std::memory_order_relaxed);
}

void Membership::arm_stack(std::uint32_t signal) {
  require_owner();
  rank_->block().rank_part.stack_signal.store(
      signal, std::memory_order_release);
}

void Membership::leave() {
  if (getpid() != pid_) {
    return;
  }
  if (auto group = cell_->close()) {
    Failure leaving;
    leaving.kind = Failure::Kind::job_stopping;
    leaving.epoch = group->epoch();
    leaving.detail = "this rank is exiting";
    group->abort(leaving);
    group.reset();
    released_.wait_for(kReleaseLimit);
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
