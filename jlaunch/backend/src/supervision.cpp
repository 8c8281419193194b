#include "supervision.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "dtype.h"
#include "wire.h"

namespace jlaunch {

namespace {

/** A span for people. */
std::string span_of(double s) {
  char text[32];
  if (s < 0.0005) {
    return "less than 1 ms";
  }
  if (s < 1) {
    std::snprintf(text, sizeof(text), "%.0f ms", s * 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%.1f s", s);
  }
  return text;
}

void set(RankMask& mask, int world_rank) {
  const auto rank = static_cast<std::size_t>(world_rank);
  mask[rank / 64] |= std::uint64_t{1} << (rank % 64);
}

std::string call_words(std::uint64_t print, std::uint64_t seq) {
  const auto dtype = static_cast<Dtype>((print >> 48) & 0xFF);
  return std::string(name_of(kind_of(print))) + " " + std::to_string(seq) +
      " (" + std::string(name_of(dtype)) + " x " +
      std::to_string(print & 0xFFFF'FFFF'FFFF) + ")";
}

/** "rank 2 was killed" and the like; what the verdict's reason means. */
std::string_view verb_of(Reason reason) {
  switch (reason) {
    case Reason::exited:
      return "exited";
    case Reason::killed:
      return "was killed";
    case Reason::paused:
      return "is paused past its limit";
    case Reason::host_lost:
      return "is on a host that is lost";
    case Reason::stuck:
      return "is stuck";
    case Reason::desync:
      return "is out of step";
    case Reason::init_failed:
      return "failed in init";
    case Reason::control_lost:
      return "lost its agent";
    case Reason::none:
      break;
  }
  return "is lost";
}

std::string words_for(const std::vector<Loss>& losses) {
  std::string words;
  for (const Loss& loss : losses) {
    words += (words.empty() ? "rank " : ", rank ") +
        std::to_string(loss.world_rank) + " " +
        std::string(verb_of(loss.reason));
  }
  return words;
}

std::vector<int> identity(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    ranks[static_cast<std::size_t>(rank)] = rank;
  }
  return ranks;
}

Supervision::Config with_world_ranks(Supervision::Config config) {
  if (config.world_ranks.empty()) {
    config.world_ranks = identity(config.size);
  }
  return config;
}

} // namespace

std::string name_of(const Call& call) {
  return call_words(fingerprint(call.kind, call.dtype, call.count), call.seq);
}

Supervision::Supervision(Config config)
    : config_(with_world_ranks(std::move(config))),
      writer_(config_.block, config_.host_block, config_.group),
      reader_(config_.block),
      patience_(config_.deadline) {}

std::optional<Failure> Supervision::begin(const Step& step) {
  patience_.restart();
  since_ns_ = monotonic_ns();
  published_ = false;
  lost_only_clean_ = false;
  const Call& call = step.call();
  writer_.begin(call.kind, call.seq, call.bytes, since_ns_);
  if (called()) {
    bool drain = false;
    // Sets verdict_; what it means for this call is decided below.
    if (auto stop = judge(step, drain); stop && !drain) {
      return stop;
    }
  }
  if (verdict_.kind == VerdictKind::raise) {
    const auto losses = missing(call);
    // What a clean partner sent before it exited may still be received: the
    // loop judges once more, after a first look.
    judge_again_ = !losses.empty() && is_point_to_point(call.kind) &&
        std::ranges::all_of(losses, &Loss::clean);
    if (!losses.empty() && !judge_again_) {
      return lost(step, losses);
    }
  }
  return std::nullopt;
}

std::optional<Failure> Supervision::stopped(const Step& step) {
  if (aborted_.load(std::memory_order_acquire)) {
    std::scoped_lock lock(mutex_);
    writer_.fail();
    return abort_failure_;
  }
  if (verdict_.kind != VerdictKind::stop) {
    return std::nullopt;
  }
  Failure failure = describe(Failure::Kind::job_stopping, step);
  failure.detail = "the job is being stopped (in " + name_of(step.call()) + ")";
  writer_.fail();
  writer_.ring_doorbell(); // SIGTERM waits for us to leave
  return failure;
}

std::optional<Failure> Supervision::judge(const Step& step, bool& drain) {
  judge_again_ = false;
  if (reader_.changed()) {
    reader_.read(verdict_);
  }
  if (auto stop = stopped(step)) {
    drain = false;
    return stop;
  }
  if (verdict_.kind != VerdictKind::raise) {
    return std::nullopt;
  }
  const auto losses = missing(step.call());
  if (losses.empty()) {
    return std::nullopt;
  }
  drain = true;
  return lost(step, losses);
}

std::vector<Loss> Supervision::missing(const Call& call) const {
  const bool to_one = is_point_to_point(call.kind);
  std::vector<Loss> relevant;
  bool can_finish = !to_one && config_.group == 0;
  for (const Loss& loss : verdict_.losses) {
    const int rank = rank_of(loss.world_rank);
    if (rank < 0 || rank == config_.rank) {
      continue;
    }
    if (loss.clean && to_one && rank != call.peer) {
      continue; // it left in peace, and this call does not need it
    }
    relevant.push_back(loss);
    can_finish = can_finish && call.seq <= loss.completed_seq;
  }
  if (can_finish) {
    relevant.clear();
  }
  return relevant;
}

int Supervision::rank_of(int world_rank) const {
  const auto& ranks = config_.world_ranks;
  const auto at = std::ranges::find(ranks, world_rank);
  return at == ranks.end() ? -1 : static_cast<int>(at - ranks.begin());
}

double Supervision::waited_s() const {
  return static_cast<double>(monotonic_ns() - since_ns_) * 1e-9;
}

Failure Supervision::describe(Failure::Kind kind, const Step& step) const {
  Failure failure;
  failure.kind = kind;
  failure.collective = step.call().kind;
  failure.seq = step.call().seq;
  failure.group = config_.group;
  failure.epoch = config_.epoch;
  failure.waited_s = waited_s();
  return failure;
}

Failure Supervision::lost(const Step& step, const std::vector<Loss>& losses) {
  Failure failure = describe(Failure::Kind::peer_lost, step);
  lost_only_clean_ = std::ranges::all_of(losses, &Loss::clean);
  RankMask mask{};
  for (const Loss& loss : losses) {
    failure.lost.push_back({loss.world_rank, loss.reason});
    set(mask, loss.world_rank);
  }
  // Its last words, if it dies of this: for want of whom.
  writer_.waiting(mask, since_ns_);
  failure.detail = words_for(losses) + "; " + name_of(step.call()) +
      " cannot be completed (waited " + span_of(failure.waited_s) + ")";
  writer_.fail();
  return failure;
}

Failure Supervision::stuck(const Step& step) {
  Failure failure = describe(Failure::Kind::peer_lost, step);
  std::vector<Loss> losses;
  for (int rank = 0; rank < config_.size; ++rank) {
    if (step.waits_for(rank)) {
      losses.push_back(
          {config_.world_ranks[static_cast<std::size_t>(rank)],
           Reason::stuck,
           0,
           false});
      failure.lost.push_back({losses.back().world_rank, Reason::stuck});
    }
  }
  std::ranges::sort(failure.lost, {}, &LostPeer::rank);
  failure.detail = words_for(losses) + ": no progress in " +
      name_of(step.call()) + " for " +
      span_of(std::chrono::duration<double>(patience_.waited()).count()) +
      ", and there is no supervisor to ask";
  writer_.fail();
  return failure;
}

void Supervision::publish_waiting(const Step& step) {
  RankMask mask{};
  for (int rank = 0; rank < config_.size; ++rank) {
    if (step.waits_for(rank)) {
      set(mask, config_.world_ranks[static_cast<std::size_t>(rank)]);
    }
  }
  if (!published_ || mask != waiting_for_) {
    const auto waited = static_cast<std::uint64_t>(patience_.waited().count());
    writer_.waiting(mask, patience_.now_ns() - waited);
    waiting_for_ = mask;
    published_ = true;
  }
}

std::optional<Failure> Supervision::rest(const Step& step) {
  patience_.tick();
  publish_waiting(step);
  const auto answered = reader_.answered();
  if (answered != answered_) {
    answered_ = answered;
    patience_.restart();
    patience_.tick();
  }
  if (!patience_.exhausted()) {
    return std::nullopt;
  }
  if (config_.block == nullptr) {
    return stuck(step);
  }
  writer_.ask();
  patience_.restart();
  patience_.tick();
  return std::nullopt;
}

void Supervision::end(const Step& step) {
  if (!is_point_to_point(step.call().kind)) {
    completed_seq_ = step.call().seq;
  }
  writer_.end(completed_seq_);
}

Failure Supervision::broken(const Step& step, Failure failure) {
  const Failure here = describe(failure.kind, step);
  failure.collective = here.collective;
  failure.seq = here.seq;
  failure.waited_s = here.waited_s;
  failure.detail += " (in " + name_of(step.call()) + ")";
  writer_.fail();
  return failure;
}

Failure Supervision::mismatch(const Step& step) {
  const Mismatch& found = *step.mismatch();
  const int world = config_.world_ranks[static_cast<std::size_t>(found.peer)];
  if (found.here == found.there && found.seq_there == step.call().seq) {
    Failure failure = describe(Failure::Kind::verbs, step);
    failure.detail = "frames from rank " + std::to_string(world) +
        " are missing or out of order in " + name_of(step.call()) +
        ": the connection has lost data";
    writer_.fail();
    return failure;
  }
  Failure failure = describe(Failure::Kind::peer_lost, step);
  failure.lost.push_back({world, Reason::desync});
  failure.detail = "rank " + std::to_string(world) + " called " +
      call_words(found.there, found.seq_there) + " where this rank called " +
      name_of(step.call()) + ": all ranks must call the same in the same order";
  writer_.desync(
      world, {found.here, step.call().seq}, {found.there, found.seq_there});
  writer_.fail();
  return failure;
}

void Supervision::abort(Failure failure) {
  std::scoped_lock lock(mutex_);
  if (!aborted_.load(std::memory_order_relaxed)) {
    abort_failure_ = std::move(failure);
    aborted_.store(true, std::memory_order_release);
  }
}

} // namespace jlaunch
