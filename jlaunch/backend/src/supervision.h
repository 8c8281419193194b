#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "block_writer.h"
#include "deadline.h"
#include "error.h"
#include "progress.h"
#include "verdict.h"

/**
 * What makes a poll loop supervised: the control block, the verdict, the
 * deadline. Used by the loop's thread, except abort(), which any may call.
 *
 * The deadline is a question, not an answer: past it the agent is asked, and
 * the loop goes on. Only a group without a control block decides by itself.
 */
namespace jlaunch {

class Supervision {
 public:
  struct Config {
    int rank = 0;
    int size = 1;
    std::uint32_t epoch = 1;
    std::uint64_t group = 0;
    std::vector<int> world_ranks; // by rank of the group
    std::chrono::nanoseconds deadline{};
    ControlBlock* block = nullptr;
    HostBlock* host_block = nullptr;
  };

  explicit Supervision(Config config);

  // What ProgressLoop asks for.
  std::optional<Failure> begin(const Step& step);
  bool called() const {
    return reader_.changed() || judge_again_ ||
        aborted_.load(std::memory_order_relaxed);
  }
  std::optional<Failure> judge(const Step& step, bool& drain);
  std::optional<Failure> rest(const Step& step);
  std::chrono::nanoseconds next_rest() const {
    return patience_.next_step();
  }
  void rested(std::chrono::nanoseconds meant) {
    patience_.tick(meant);
  }
  void moved() {
    patience_.restart();
    writer_.moved();
  }
  void end(const Step& step);
  Failure broken(const Step& step, Failure failure);
  Failure mismatch(const Step& step);

  /** Breaks the running and all later steps. The caller rings the bell. */
  void abort(Failure failure);
  /** True if all that the last loss named had exited with 0: calls that do not
   *  need those ranks go on. */
  bool lost_only_clean() const {
    return lost_only_clean_;
  }
  void formed() {
    writer_.formed(config_.epoch);
  }

 private:
  std::optional<Failure> stopped(const Step& step);
  /** The losses that this call cannot do without; none if it can finish. */
  std::vector<Loss> missing(const Call& call) const;
  Failure lost(const Step& step, const std::vector<Loss>& losses);
  Failure stuck(const Step& step);
  Failure describe(Failure::Kind kind, const Step& step) const;
  int rank_of(int world_rank) const;
  void publish_waiting(const Step& step);
  double waited_s() const;

  const Config config_;
  BlockWriter writer_;
  VerdictReader reader_;
  Patience patience_;
  Verdict verdict_;
  std::uint64_t since_ns_ = 0;
  std::uint64_t completed_seq_ = 0;
  std::uint32_t answered_ = 0;
  RankMask waiting_for_{};
  bool published_ = false; // waiting_for_ is in the control block
  bool lost_only_clean_ = false;
  bool judge_again_ = false; // begin let a call start under a verdict

  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_; // guards what follows
  Failure abort_failure_;
};

/** The call in words: "all_sum 7 (float32 x 4096)". */
std::string name_of(const Call& call);

} // namespace jlaunch
