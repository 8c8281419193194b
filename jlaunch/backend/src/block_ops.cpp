#include "block_ops.h"

#include <bit>
#include <stdexcept>
#include <string>

#include "platform.h"
#include "robust_life.h"

namespace jlaunch {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

/** An update takes some 50 ns: so many tries outlast a writer that runs, and a
 *  writer that was taken off its core is read past. */
constexpr int kReadTries = 64;

/** Always the world group's (block_writer.h); another slot that is free again
 *  keeps what its last group left there. */
constexpr std::size_t kWorldSlot = 0;

std::vector<std::uint32_t> ranks_of(
    const std::array<std::uint64_t, kMaskWords>& mask) {
  std::vector<std::uint32_t> ranks;
  for (std::size_t word = 0; word < kMaskWords; ++word) {
    for (std::uint64_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      ranks.push_back(
          static_cast<std::uint32_t>(word * 64) +
          static_cast<std::uint32_t>(std::countr_zero(bits)));
    }
  }
  return ranks;
}

/** The fields of a slot, in private memory. */
struct SlotCopy {
  WaitSnapshot wait;
  std::uint64_t completed_seq = 0;
  bool torn = false;
};

/** One pass over the fields; true if no update happened meanwhile. */
bool copy_once(
    const GroupSlot& slot,
    SlotCopy& out,
    std::array<std::uint64_t, kMaskWords>& mask) {
  const std::uint32_t before = slot.lock.load(std::memory_order_acquire);
  out.wait.collective = static_cast<Collective>(slot.collective.load(relaxed));
  out.wait.group = slot.group.load(relaxed);
  out.wait.seq = slot.seq.load(relaxed);
  out.wait.bytes = slot.bytes.load(relaxed);
  out.wait.since_ns = slot.since_ns.load(relaxed);
  out.wait.progress_ns = slot.progress_ns.load(relaxed);
  out.completed_seq = slot.completed_seq.load(relaxed);
  for (std::size_t i = 0; i < kMaskWords; ++i) {
    mask[i] = slot.waiting_for[i].load(relaxed);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  return before % 2 == 0 && before == slot.lock.load(relaxed);
}

SlotCopy read_slot(const GroupSlot& slot) {
  SlotCopy out;
  std::array<std::uint64_t, kMaskWords> mask{};
  out.torn = true;
  for (int i = 0; i < kReadTries && out.torn; ++i) {
    out.torn = !copy_once(slot, out, mask);
    if (out.torn) {
      spin_pause();
    }
  }
  if (out.wait.collective != Collective::none) {
    out.wait.waiting_for = ranks_of(mask);
  }
  return out;
}

void check_verdict(VerdictKind kind, std::span<const LossEntry> losses) {
  if (kind < VerdictKind::keep_waiting || kind > VerdictKind::stop) {
    throw std::invalid_argument(
        "verdict kind " + std::to_string(static_cast<std::uint32_t>(kind)) +
        ", expected keep_waiting, raise or stop");
  }
  for (const LossEntry& loss : losses) {
    if (loss.rank >= kMaxRanks) {
      throw std::invalid_argument(
          "lost rank " + std::to_string(loss.rank) + ", expected less than " +
          std::to_string(kMaxRanks));
    }
    if (loss.reason < Reason::exited || loss.reason > Reason::control_lost) {
      throw std::invalid_argument(
          "rank " + std::to_string(loss.rank) + " lost for reason " +
          std::to_string(static_cast<unsigned>(loss.reason)) +
          ", which does not exist");
    }
  }
}

void write_losses(VerdictPart& part, std::span<const LossEntry> losses) {
  std::array<std::uint64_t, kMaskWords> lost{};
  std::array<std::uint64_t, kMaskWords> clean{};
  for (const LossEntry& loss : losses) {
    const std::uint64_t bit = std::uint64_t{1} << (loss.rank % 64);
    lost[loss.rank / 64] |= bit;
    clean[loss.rank / 64] |= loss.clean ? bit : 0;
    part.reason[loss.rank].store(
        static_cast<std::uint8_t>(loss.reason), relaxed);
    part.completed_seq[loss.rank].store(loss.completed_seq, relaxed);
  }
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < kMaskWords; ++i) {
    count += static_cast<std::uint32_t>(std::popcount(lost[i]));
    part.lost[i].store(lost[i], relaxed);
    part.clean[i].store(clean[i], relaxed);
  }
  part.losses.store(count, relaxed);
}

void raise_to(std::atomic<std::uint32_t>& field, std::uint32_t value) {
  if (value > field.load(relaxed)) {
    field.store(value, std::memory_order_release);
  }
}

} // namespace

RankSnapshot read_rank(const ControlBlock& block) {
  const RankPart& part = block.rank_part;
  RankSnapshot out;
  out.owner_pid = part.owner_pid.load(std::memory_order_acquire);
  out.owner_alive =
      life_of(part.owner.load(std::memory_order_acquire)) == Life::held;
  out.phase = part.phase.load(relaxed);
  out.epoch = part.epoch.load(relaxed);
  out.progress = part.progress.load(relaxed);
  out.reports = part.reports.load(relaxed);
  // The slot is written before the question is counted.
  out.question = part.question.load(std::memory_order_acquire);
  out.question_slot = part.question_slot.load(relaxed);
  out.in_wait = part.in_wait.load(relaxed) != 0;
  out.stack_signal = part.stack_signal.load(std::memory_order_acquire);
  const std::uint32_t peer = part.desync_peer.load(std::memory_order_acquire);
  if (peer != 0) {
    out.desync = DesyncSnapshot{
        peer - 1,
        part.desync_here.load(relaxed),
        part.desync_there.load(relaxed),
        part.desync_seq_here.load(relaxed),
        part.desync_seq_there.load(relaxed)};
  }
  for (std::size_t i = 0; i < kGroupSlots; ++i) {
    SlotCopy copy = read_slot(part.slots[i]);
    out.torn = out.torn || copy.torn;
    if (i == kWorldSlot) {
      out.completed_seq = copy.completed_seq;
    }
    // Out of the loop with a collective in the slot: it failed there. These are
    // the last words of one that died of it; one that lives waits for nothing.
    const bool current = out.in_wait || !out.owner_alive;
    if (copy.wait.collective != Collective::none && current) {
      copy.wait.slot = i;
      out.waits.push_back(std::move(copy.wait));
    }
  }
  return out;
}

void write_verdict(
    ControlBlock& block,
    std::uint32_t verdict,
    VerdictKind kind,
    std::span<const LossEntry> losses,
    std::uint32_t answered) {
  check_verdict(kind, losses);
  VerdictPart& part = block.verdict;
  // An agent takes over nobody's block, so only this thread moves the lock.
  const std::uint32_t lock = part.lock.load(relaxed) & ~1U;
  part.lock.store(lock + 1, relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  raise_to(part.answered, answered);
  if (kind != VerdictKind::keep_waiting) {
    if (!losses.empty()) {
      write_losses(part, losses);
    }
    raise_to(part.verdict, verdict);
    raise_to(part.kind, static_cast<std::uint32_t>(kind));
  }
  part.lock.store(lock + 2, std::memory_order_release);
  ring_bell(block);
}

void ring_bell(ControlBlock& block) {
  block.bell.fetch_add(1);
  futex_wake(block.bell);
}

void ring_doorbell(HostBlock& block) {
  block.doorbell.fetch_add(1);
  futex_wake(block.doorbell);
}

void reset_rank_part(RankPart& part) {
  part.in_wait.store(0, relaxed);
  part.desync_peer.store(0, relaxed);
  part.stack_signal.store(0, relaxed);
  for (GroupSlot& slot : part.slots) {
    const std::uint32_t lock = slot.lock.load(relaxed) & ~1U;
    slot.lock.store(lock + 1, relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    slot.collective.store(0, relaxed);
    slot.group.store(0, relaxed);
    slot.seq.store(0, relaxed);
    slot.completed_seq.store(0, relaxed);
    slot.bytes.store(0, relaxed);
    for (auto& word : slot.waiting_for) {
      word.store(0, relaxed);
    }
    slot.lock.store(lock + 2, std::memory_order_release);
  }
}

} // namespace jlaunch
