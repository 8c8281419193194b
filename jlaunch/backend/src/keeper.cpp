#include "keeper.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include <unistd.h>

#include "block_ops.h"
#include "lease.h"
#include "platform.h"
#include "platform_watch.h"
#include "robust_life.h"

namespace jlaunch {

namespace {

/** How long a rank may take to leave its collective before SIGTERM is sent all
 *  the same. */
constexpr std::uint64_t kLeaveWaitNs = 200'000'000;

constexpr std::uint64_t kNever = UINT64_MAX;

std::chrono::nanoseconds ns(std::uint64_t span) {
  return std::chrono::nanoseconds(
      static_cast<std::int64_t>(std::min<std::uint64_t>(span, INT64_MAX)));
}

std::string seconds(std::uint64_t ns) {
  return std::to_string(ns / 1'000'000'000) + "." +
      std::to_string(ns / 100'000'000 % 10) + " s";
}

/** SIGKILL to the group that this process leads, else to the process. */
void end_by_force(pid_t self) {
  ::kill(::getpgrp() == self ? -self : self, SIGKILL);
}

} // namespace

/** Shared by the object and the thread; the last one to go unmaps the blocks. */
struct Keeper::State {
  State(
      std::shared_ptr<RankMapping> rank_mapping,
      std::shared_ptr<HostMapping> host_mapping,
      OnControlLost callback)
      : rank(std::move(rank_mapping)),
        host(std::move(host_mapping)),
        on_control_lost(std::move(callback)),
        vigil(host->block().agent_life) {}

  RankPart& part() const {
    return rank->block().rank_part;
  }

  const std::shared_ptr<RankMapping> rank;
  const std::shared_ptr<HostMapping> host;
  OnControlLost on_control_lost; // the thread's, until `left`
  const pid_t pid = ::getpid();
  Vigil vigil;
  std::atomic<std::uint32_t> released{0}; // futex word: release() was called
  std::promise<void> claimed;
  std::promise<void> left;
  std::once_flag release_once;

  void run();
  void hold();
  void take(RobustLife& claim);
  std::string keep_watch();
  std::uint64_t ask_to_end(const std::string& why);
  bool wait_for_release(std::uint64_t until_ns);
};

/** Returns why control was lost; empty when the claim is to be released. */
std::string Keeper::State::keep_watch() {
  Lease lease;
  for (;;) {
    const HostBlock& agent = host->block();
    const std::uint64_t now = monotonic_ns();
    const std::uint64_t beat = agent.agent_beat_ns.load();
    const std::uint64_t lease_ns = agent.lease_ns.load();
    const Lease::Step step = lease.look(now, beat, lease_ns);
    if (step.lapsed) {
      return "the lease lapsed: no heartbeat of the agent (pid " +
          std::to_string(agent.agent_pid.load()) + ") for " +
          seconds(now - beat) + ", the lease is " + seconds(lease_ns);
    }
    switch (vigil.wait_until(step.wake_at_ns)) {
      case VigilEnd::died:
        return "the agent died (pid " + std::to_string(agent.agent_pid.load()) +
            ")";
      case VigilEnd::interrupted:
        return {};
      case VigilEnd::timeout:
        break;
    }
  }
}

/** True if release() was called before the time. */
bool Keeper::State::wait_for_release(std::uint64_t until_ns) {
  while (released.load() == 0) {
    const std::uint64_t now = monotonic_ns();
    if (now >= until_ns) {
      return false;
    }
    futex_wait(released, 0, until_ns == kNever ? kForever : ns(until_ns - now));
  }
  return true;
}

/** The polite half of the end. Returns, when the claim is released, the time of
 *  the other half; if that comes first, does not return. */
std::uint64_t Keeper::State::ask_to_end(const std::string& why) {
  const std::uint64_t now = monotonic_ns();
  const std::uint64_t grace = host->block().grace_ns.load();
  const std::uint64_t kill_at = grace < kNever - now ? now + grace : kNever;
  if (on_control_lost) {
    on_control_lost(why);
  }
  if (part().in_wait.load() != 0) {
    wait_for_release(std::min(now + kLeaveWaitNs, kill_at));
  }
  ::kill(pid, SIGTERM);
  if (!wait_for_release(kill_at)) {
    end_by_force(pid);
  }
  return kill_at;
}

void Keeper::State::take(RobustLife& claim) {
  const HostBlock& agent = host->block();
  if (life_of(agent.agent_life.load()) != Life::held) {
    throw ClaimRefused(
        host->path() + ": the agent of this job on this host (pid " +
        std::to_string(agent.agent_pid.load()) +
        ") is gone, so nobody may join the job any more");
  }
  if (!claim.take()) {
    throw ClaimRefused(
        rank->path() + ": rank " + std::to_string(rank->block().rank) +
        " is held by process " + std::to_string(part().owner_pid.load()) +
        ", which is alive; this is process " + std::to_string(pid) +
        ". Only one process of a rank may call mlx.core.distributed.init: "
        "start others without the JLAUNCH_ variables");
  }
}

void Keeper::State::hold() {
  std::string why;
  std::uint64_t kill_at = kNever;
  {
    RobustLife claim(part().owner);
    take(claim);
    reset_rank_part(part());
    part().owner_pid = static_cast<std::uint32_t>(pid);
    part().phase = static_cast<std::uint32_t>(Phase::claimed);
    ring_doorbell(host->block());
    claimed.set_value();
    why = keep_watch();
    if (!why.empty()) {
      kill_at = ask_to_end(why);
    }
    part().phase = static_cast<std::uint32_t>(Phase::leaving);
  }
  ring_doorbell(host->block());
  left.set_value();
  if (!why.empty()) {
    released = 0; // release() is over: from here on it is only a clock
    wait_for_release(kill_at);
    end_by_force(pid);
  }
}

void Keeper::State::run() {
  try {
    hold();
  } catch (...) {
    claimed.set_exception(std::current_exception());
    left.set_value();
  }
}

std::unique_ptr<Keeper> Keeper::claim(
    std::shared_ptr<RankMapping> rank,
    std::shared_ptr<HostMapping> host,
    OnControlLost on_control_lost) {
  auto state = std::make_shared<State>(
      std::move(rank), std::move(host), std::move(on_control_lost));
  std::future<void> claimed = state->claimed.get_future();
  {
    const SignalsBlocked blocked;
    // Detached: a child made by fork has the object, but no thread to join.
    std::thread([state] { state->run(); }).detach();
  }
  try {
    claimed.get();
  } catch (...) {
    state->left.get_future().wait();
    state->on_control_lost = nullptr;
    throw;
  }
  return std::unique_ptr<Keeper>(new Keeper(std::move(state)));
}

Keeper::Keeper(std::shared_ptr<State> state) : state_(std::move(state)) {}

Keeper::~Keeper() {
  release();
}

void Keeper::release() {
  if (::getpid() != state_->pid) {
    return;
  }
  std::call_once(state_->release_once, [this] {
    state_->released = 1;
    futex_wake(state_->released);
    state_->vigil.interrupt();
    state_->left.get_future().wait();
    // Here, and not on the thread: the callback may own things of the caller.
    state_->on_control_lost = nullptr;
  });
}

void Keeper::enter(Phase phase) {
  state_->part().phase = static_cast<std::uint32_t>(phase);
  ring_doorbell(state_->host->block());
}

} // namespace jlaunch
