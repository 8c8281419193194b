#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "contract.h"

/**
 * The control block: one shared mapping per rank between the rank's native
 * code and its agent. Only atomics, fixed width, versioned; nothing in it is a
 * pointer. It is the fast, GIL-free half of the control plane: a verdict is
 * read on every turn of the poll loop, and an agent can read how far a frozen
 * rank got.
 *
 * Who writes what. The rank writes `rank`, the agent writes `verdict`; `bell`
 * is rung by anybody who changed something the rank may be asleep on (the
 * agent, and the peers' soft provider). The layout is 64-bit clean and the same
 * on Linux and macOS.
 *
 * Both halves are seqlocks with one writer each: odd while an update is under
 * way. A writer may be frozen (SIGSTOP) or dead in the middle of one, so a
 * reader tries a bounded number of times and then takes the fields as they are,
 * and says so (`torn`); every field is an atomic of its own, so the worst is a
 * mixture of two updates, never a torn number.
 */
namespace jlaunch {

inline constexpr std::uint32_t kControlBlockMagic = 0x4a4c4342; // "JLCB"
inline constexpr std::uint32_t kControlBlockVersion = 3;
inline constexpr std::size_t kGroupSlots = 8;
inline constexpr std::size_t kMaskWords = kMaxRanks / 64;

/** One active group of this rank: the collective that it is in, if any. */
struct alignas(64) GroupSlot {
  std::atomic<std::uint32_t> lock; // seqlock
  std::atomic<std::uint32_t> collective; // Collective; none outside of one
  std::atomic<std::uint64_t> group; // id of the group; 0 is the world
  std::atomic<std::uint64_t> seq; // of the present or last collective
  std::atomic<std::uint64_t> completed_seq; // last one finished
  std::atomic<std::uint64_t> bytes; // of the present one
  std::atomic<std::uint64_t> since_ns; // when it began
  std::atomic<std::uint64_t> progress_ns; // when it last moved (read rarely)
  std::array<std::atomic<std::uint64_t>, kMaskWords> waiting_for; // ranks
};

/** Written by the rank. */
struct alignas(64) RankPart {
  /**
   * The claim: 0 free, else the thread id of the holder's keeper thread, as a
   * robust futex (FUTEX_WAITERS and FUTEX_OWNER_DIED as the kernel defines
   * them). Taken by compare-and-swap; the kernel marks it within 0.1 ms of the
   * holder's death.
   */
  std::atomic<std::uint32_t> owner;
  std::atomic<std::uint32_t> owner_pid;
  std::atomic<std::uint32_t> phase; // Phase
  std::atomic<std::uint32_t> epoch; // of the group that the rank is in
  std::atomic<std::uint64_t> progress; // +1 each time a collective moves
  std::atomic<std::uint64_t> reports; // +1 for each jlaunch.report()
  std::atomic<std::uint32_t> question; // +1 each time the deadline passes
  std::atomic<std::uint32_t> question_slot; // slot that asks
  std::atomic<std::uint32_t> in_wait; // 1 while inside the poll loop
  std::atomic<std::uint32_t> desync_peer; // 1 + rank; 0 none
  std::atomic<std::uint64_t> desync_here; // fingerprint of our call
  std::atomic<std::uint64_t> desync_there; // fingerprint of the peer's call
  std::atomic<std::uint64_t> desync_seq_here; // their numbers in the group
  std::atomic<std::uint64_t> desync_seq_there;
  /** Signal on which it writes its stacks; 0 while no handler is armed. */
  std::atomic<std::uint32_t> stack_signal;
  std::array<GroupSlot, kGroupSlots> slots;
};

/** Written by the agent. */
struct alignas(64) VerdictPart {
  std::atomic<std::uint32_t> lock; // seqlock
  std::atomic<std::uint32_t> kind; // VerdictKind
  std::atomic<std::uint32_t> verdict; // number of the verdict; 0 none yet
  std::atomic<std::uint32_t> answered; // last question answered: keep waiting
  std::atomic<std::uint32_t> losses; // how many ranks are lost
  std::array<std::atomic<std::uint64_t>, kMaskWords> lost; // mask of ranks
  std::array<std::atomic<std::uint8_t>, kMaxRanks> reason; // Reason, by rank
  std::array<std::atomic<std::uint64_t>, kMaskWords> clean; // exited with 0
  std::array<std::atomic<std::uint64_t>, kMaxRanks> completed_seq; // by rank
};

/** The whole, mapped from a file of kControlBlockBytes bytes. */
struct ControlBlock {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint32_t rank;
  std::uint32_t started_epoch;
  /** Futex word that the rank sleeps on: changed by whoever wakes it. */
  alignas(64) std::atomic<std::uint32_t> bell;
  /** Non-zero while a thread of the rank sleeps on `bell` (saves the wake). */
  std::atomic<std::uint32_t> sleepers;
  RankPart rank_part;
  VerdictPart verdict;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(ControlBlock) <= kControlBlockBytes);

inline constexpr std::uint32_t kHostBlockMagic = 0x4a4c4842; // "JLHB"

/** The agent's own block, one per host and job; read by every rank's keeper. */
struct HostBlock {
  std::uint32_t magic;
  std::uint32_t version;
  std::atomic<std::uint32_t> agent_pid;
  /** Robust futex held by a thread of the agent: marked when the agent dies. */
  alignas(64) std::atomic<std::uint32_t> agent_life;
  /** Heartbeat of the agent's loop: CLOCK_MONOTONIC nanoseconds. */
  std::atomic<std::uint64_t> agent_beat_ns;
  /** Ranks live on so long without a heartbeat (--lease), in nanoseconds. */
  std::atomic<std::uint64_t> lease_ns;
  /** From a clean stop to SIGKILL (--grace), in nanoseconds. */
  std::atomic<std::uint64_t> grace_ns;
  /** Futex word rung by a rank that asked a question or changed its phase. */
  alignas(64) std::atomic<std::uint32_t> doorbell;
};

static_assert(sizeof(HostBlock) <= kControlBlockBytes);

} // namespace jlaunch
