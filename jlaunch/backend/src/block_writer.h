#pragma once

#include <cstdint>
#include <span>

#include "control_block.h"

/**
 * Writes the rank's half of the control block for one group: the slot that says
 * which collective the group is in. The slot is a seqlock with this as its only
 * writer; nothing here blocks, allocates or reads the clock.
 *
 * With a null block every call does nothing. One thread at a time.
 */
namespace jlaunch {

class BlockWriter {
 public:
  /** Takes slot 0 for group 0 (the world), else a free one. Throws
   *  std::length_error if all are taken. */
  BlockWriter(ControlBlock* block, HostBlock* host, std::uint64_t group);
  ~BlockWriter();
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  /** A collective begins: number `seq`, of so many bytes, at this time. */
  void begin(
      Collective kind,
      std::uint64_t seq,
      std::uint64_t bytes,
      std::uint64_t now_ns) {
    if (block_ == nullptr) {
      return;
    }
    lock();
    store(slot_->collective, static_cast<std::uint32_t>(kind));
    store(slot_->seq, seq);
    store(slot_->bytes, bytes);
    store(slot_->since_ns, now_ns);
    store(slot_->progress_ns, now_ns);
    clear_waiting(); // a failed one left it
    unlock();
    store(block_->rank_part.in_wait, 1U);
  }

  /** Something moved. */
  void moved() {
    if (block_ != nullptr) {
      auto& progress = block_->rank_part.progress;
      store(progress, progress.load(std::memory_order_relaxed) + 1);
    }
  }

  /** It finished; `completed_seq` is the last numbered one that did. */
  void end(std::uint64_t completed_seq) {
    if (block_ == nullptr) {
      return;
    }
    lock();
    store(slot_->collective, static_cast<std::uint32_t>(Collective::none));
    store(slot_->completed_seq, completed_seq);
    clear_waiting();
    unlock();
    store(block_->rank_part.in_wait, 0U);
  }

  /** It failed: we are out of it, and it counts as not completed. The slot
   *  keeps what was waited for, and for whom, until the next one begins: if the
   *  rank dies of this, these are its last words. */
  void fail();

  /** Wakes the agent: it looks at the blocks of its host. */
  void ring_doorbell();

  /** It waits for these world ranks (a mask of kMaskWords words). */
  void waiting(
      std::span<const std::uint64_t, kMaskWords> ranks,
      std::uint64_t progress_ns);

  /** The deadline has passed: asks the agent, and rings its doorbell. */
  void ask();

  /** One call, as its fingerprint and its number in the group. */
  struct Called {
    std::uint64_t fingerprint = 0;
    std::uint64_t seq = 0;
  };

  /** Two ranks called different things. */
  void desync(int world_rank, Called here, Called there);

  /** The group has formed, in this epoch. */
  void formed(std::uint32_t epoch);

 private:
  template <class T>
  static void store(std::atomic<T>& field, T value) {
    field.store(value, std::memory_order_relaxed);
  }
  void lock() {
    const auto at = slot_->lock.load(std::memory_order_relaxed);
    slot_->lock.store(at + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  void unlock() {
    const auto at = slot_->lock.load(std::memory_order_relaxed);
    slot_->lock.store(at + 1, std::memory_order_release);
  }
  void clear_waiting() {
    if (waiting_) {
      for (auto& word : slot_->waiting_for) {
        store(word, std::uint64_t{0});
      }
      waiting_ = false;
    }
  }

  ControlBlock* block_;
  HostBlock* host_;
  GroupSlot* slot_ = nullptr;
  std::uint32_t slot_number_ = 0;
  bool waiting_ = false; // waiting_for holds something
};

} // namespace jlaunch
