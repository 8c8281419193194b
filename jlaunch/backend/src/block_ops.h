#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "control_block.h"

/**
 * The agent's side of the control block: a bounded look at the rank's half, and
 * the only writer of the verdict's half. And the two bells, which anybody may
 * ring.
 */
namespace jlaunch {

/** A group slot with a collective in it. Times are of monotonic_ns(). */
struct WaitSnapshot {
  std::size_t slot = 0;
  std::uint64_t group = 0;
  Collective collective = Collective::none;
  std::uint64_t seq = 0;
  std::uint64_t bytes = 0;
  std::uint64_t since_ns = 0;
  std::uint64_t progress_ns = 0;
  std::vector<std::uint32_t> waiting_for;
};

struct DesyncSnapshot {
  std::uint32_t peer = 0;
  std::uint64_t here = 0;
  std::uint64_t there = 0;
  std::uint64_t seq_here = 0;
  std::uint64_t seq_there = 0;
};

/** The rank's half at one moment. */
struct RankSnapshot {
  std::uint32_t owner_pid = 0;
  bool owner_alive = false;
  std::uint32_t phase = 0; // Phase
  std::uint32_t epoch = 0;
  std::uint64_t progress = 0;
  std::uint64_t reports = 0;
  std::uint32_t question = 0;
  std::uint32_t question_slot = 0;
  bool in_wait = false;
  std::uint64_t completed_seq = 0; // of the world group
  std::optional<DesyncSnapshot> desync;
  std::vector<WaitSnapshot> waits;
  std::uint32_t stack_signal = 0; // 0: not armed
  bool torn = false; // read past a writer that is frozen in an update
};

/** Never waits for a writer: after a bounded number of tries it takes the
 *  fields as they are, and says so. Any thread. */
RankSnapshot read_rank(const ControlBlock& block);

/** One lost rank, as told to the others. */
struct LossEntry {
  std::uint32_t rank = 0;
  Reason reason = Reason::none;
  std::uint64_t completed_seq = 0;
  bool clean = false;
};

/**
 * Writes a verdict and rings the rank's bell. One writer at a time.
 *
 * `answered` is raised, never lowered. keep_waiting does nothing else. raise
 * and stop: the kind is never downgraded (stop outranks raise), the number
 * never falls, and `losses` replaces what was told before, unless it is empty.
 * Throws std::invalid_argument for a kind, rank or reason that does not exist,
 * with nothing written.
 */
void write_verdict(
    ControlBlock& block,
    std::uint32_t verdict,
    VerdictKind kind,
    std::span<const LossEntry> losses,
    std::uint32_t answered);

/** Wakes every thread that sleeps on the rank's bell. Any process. */
void ring_bell(ControlBlock& block);

/** Wakes the agent: a question was asked, or a claim or phase changed. */
void ring_doorbell(HostBlock& block);

/**
 * Makes the rank's half fresh for a new holder: what a dead holder left in the
 * middle of an update is made whole. Counters that only grow are kept. By the
 * holder of the claim, before any group is opened.
 */
void reset_rank_part(RankPart& part);

} // namespace jlaunch
