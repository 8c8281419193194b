#include "block_writer.h"

#include <stdexcept>
#include <string>

#include "platform.h"

namespace jlaunch {

namespace {

/** A slot for the group: 0 is the world's; others are claimed by their id. */
std::uint32_t claim_slot(ControlBlock& block, std::uint64_t group) {
  if (group == 0) {
    return 0;
  }
  for (std::uint32_t i = 1; i < kGroupSlots; ++i) {
    std::uint64_t free = 0;
    if (block.rank_part.slots[i].group.compare_exchange_strong(free, group)) {
      return i;
    }
  }
  throw std::length_error(
      "a rank may be in " + std::to_string(kGroupSlots) +
      " groups at a time: drop the ones that are not used any more");
}

} // namespace

BlockWriter::BlockWriter(
    ControlBlock* block,
    HostBlock* host,
    std::uint64_t group)
    : block_(block), host_(host) {
  if (block_ != nullptr) {
    slot_number_ = claim_slot(*block_, group);
    slot_ = &block_->rank_part.slots[slot_number_];
    // A writer that died in the middle of an update left it odd.
    const auto at = slot_->lock.load(std::memory_order_relaxed);
    store(slot_->lock, at + (at & 1U));
    waiting_ = true;
    end(0);
  }
}

BlockWriter::~BlockWriter() {
  if (block_ != nullptr && slot_number_ != 0) {
    slot_->group.store(0, std::memory_order_release);
  }
}

void BlockWriter::fail() {
  if (block_ != nullptr) {
    block_->rank_part.in_wait.store(0, std::memory_order_release);
  }
}

void BlockWriter::ring_doorbell() {
  if (host_ != nullptr) {
    host_->doorbell.fetch_add(1, std::memory_order_release);
    futex_wake(host_->doorbell);
  }
}

void BlockWriter::waiting(
    std::span<const std::uint64_t, kMaskWords> ranks,
    std::uint64_t progress_ns) {
  if (block_ == nullptr) {
    return;
  }
  lock();
  store(slot_->progress_ns, progress_ns);
  for (std::size_t word = 0; word < ranks.size(); ++word) {
    store(slot_->waiting_for[word], ranks[word]);
  }
  unlock();
  waiting_ = true;
}

void BlockWriter::ask() {
  if (block_ == nullptr) {
    return;
  }
  store(block_->rank_part.question_slot, slot_number_);
  block_->rank_part.question.fetch_add(1, std::memory_order_release);
  ring_doorbell();
}

void BlockWriter::desync(int world_rank, Called here, Called there) {
  if (block_ == nullptr) {
    return;
  }
  auto& part = block_->rank_part;
  store(part.desync_here, here.fingerprint);
  store(part.desync_there, there.fingerprint);
  store(part.desync_seq_here, here.seq);
  store(part.desync_seq_there, there.seq);
  part.desync_peer.store(
      static_cast<std::uint32_t>(world_rank) + 1, std::memory_order_release);
  ring_doorbell();
}

void BlockWriter::formed(std::uint32_t epoch) {
  if (block_ != nullptr) {
    block_->rank_part.epoch.store(epoch, std::memory_order_release);
  }
}

} // namespace jlaunch
