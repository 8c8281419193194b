// The rank's half of the control block, as an agent reads it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "block_writer.h"
#include "progress.h"
#include "support.h"
#include "verdict.h"

using namespace jlaunch;
using namespace jlaunch::test;

TEST_CASE("block: a slot says which collective the group is in") {
  Shared<ControlBlock> block;
  Shared<HostBlock> host;
  BlockWriter writer(&*block, &*host, 0);
  auto& part = block->rank_part;
  auto& slot = part.slots[0];
  writer.begin(Collective::all_gather, 7, 4096, 1000);
  CHECK(slot.lock % 2 == 0);
  CHECK(slot.collective == static_cast<std::uint32_t>(Collective::all_gather));
  CHECK(slot.seq == 7);
  CHECK(slot.bytes == 4096);
  CHECK(slot.since_ns == 1000);
  CHECK(slot.progress_ns == 1000);
  CHECK(part.in_wait == 1);
  RankMask mask{};
  mask[1] = 5;
  writer.waiting(mask, 2000);
  CHECK(slot.waiting_for[1] == 5);
  CHECK(slot.progress_ns == 2000);
  writer.moved();
  CHECK(part.progress == 1);
  writer.end(7);
  CHECK(slot.collective == 0);
  CHECK(slot.completed_seq == 7);
  CHECK(slot.waiting_for[1] == 0);
  CHECK(part.in_wait == 0);
  writer.begin(Collective::all_sum, 8, 4, 3000);
  writer.fail();
  CHECK(slot.completed_seq == 7);
  CHECK(part.in_wait == 0);
  CHECK(slot.seq == 8); // what it failed in is still to be read
  CHECK(slot.collective == static_cast<std::uint32_t>(Collective::all_sum));
  CHECK(slot.lock % 2 == 0);
}

TEST_CASE("block: a question rings the host's doorbell and names its slot") {
  Shared<ControlBlock> block;
  Shared<HostBlock> host;
  BlockWriter world(&*block, &*host, 0);
  BlockWriter other(&*block, &*host, 77);
  other.ask();
  CHECK(block->rank_part.question == 1);
  CHECK(block->rank_part.question_slot == 1);
  CHECK(host->doorbell == 1);
  world.ask();
  CHECK(block->rank_part.question_slot == 0);
  CHECK(host->doorbell == 2);
}

TEST_CASE("block: slots are claimed, given back, and run out") {
  Shared<ControlBlock> block;
  std::vector<std::unique_ptr<BlockWriter>> writers;
  for (std::uint64_t group = 1; group < kGroupSlots; ++group) {
    writers.push_back(std::make_unique<BlockWriter>(&*block, nullptr, group));
  }
  CHECK_THROWS_AS(BlockWriter(&*block, nullptr, 99), std::length_error);
  writers.pop_back();
  CHECK_NOTHROW(BlockWriter(&*block, nullptr, 99));
}

TEST_CASE("block: a slot that a dead writer left odd is mended by the next") {
  Shared<ControlBlock> block;
  block->rank_part.slots[0].lock = 5;
  BlockWriter writer(&*block, nullptr, 0);
  CHECK(block->rank_part.slots[0].lock % 2 == 0);
}

TEST_CASE("block: a reader never takes half an update for a whole one") {
  Shared<ControlBlock> block;
  BlockWriter writer(&*block, nullptr, 0);
  const auto& slot = block->rank_part.slots[0];
  std::atomic<bool> stop{false};
  std::thread rank([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      writer.begin(Collective::all_sum, i, 2 * i, 3 * i);
    }
  });
  int whole = 0;
  bool consistent = true;
  while (whole < 1000) {
    const auto before = slot.lock.load(std::memory_order_acquire);
    const auto seq = slot.seq.load(std::memory_order_relaxed);
    const auto bytes = slot.bytes.load(std::memory_order_relaxed);
    const auto since = slot.since_ns.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 &&
        slot.lock.load(std::memory_order_relaxed) == before) {
      ++whole;
      consistent = consistent && bytes == 2 * seq && since == 3 * seq;
    }
  }
  stop = true;
  rank.join();
  CHECK(consistent);
}

TEST_CASE("block: with no block nothing is written, and nothing breaks") {
  BlockWriter writer(nullptr, nullptr, 5);
  writer.begin(Collective::all_sum, 1, 1, 1);
  writer.moved();
  writer.waiting(RankMask{}, 1);
  writer.ask();
  writer.desync(1, {2, 3}, {4, 5});
  writer.end(1);
  CHECK_FALSE(VerdictReader(nullptr).changed());
}

TEST_CASE(
    "verdict: read whole, once per change; past a frozen writer, in the end") {
  const TempDir dir;
  const BlockFile file(dir, 0);
  VerdictReader reader(&file.block());
  Verdict verdict;
  CHECK_FALSE(reader.changed());
  file.say(
      VerdictKind::raise,
      {{3, Reason::killed, 17}, {900, Reason::exited, 18, true}});
  REQUIRE(reader.changed());
  REQUIRE(reader.read(verdict));
  CHECK_FALSE(reader.changed());
  CHECK(verdict.kind == VerdictKind::raise);
  REQUIRE(verdict.losses.size() == 2);
  CHECK(verdict.losses[0].world_rank == 3);
  CHECK(verdict.losses[0].completed_seq == 17);
  CHECK_FALSE(verdict.losses[0].clean);
  CHECK(verdict.losses[1].world_rank == 900);
  CHECK(verdict.losses[1].clean);
  file.block().verdict.lock.fetch_add(1); // frozen in the middle
  file.say(VerdictKind::stop);
  int tries = 1;
  while (!reader.read(verdict)) {
    REQUIRE(reader.changed());
    REQUIRE(++tries < 100000);
  }
  CHECK(tries > 1);
  CHECK(verdict.kind == VerdictKind::stop);
}

TEST_CASE("idle: many polls only where every rank has a core") {
  const auto alone = IdlePlan::for_ranks(2, 2, true);
  const auto crowd = IdlePlan::for_ranks(4, 2, true);
  const auto wire = IdlePlan::for_ranks(1, 2, false);
  CHECK(alone.polls >= 100);
  CHECK(alone.polls <= 1000);
  CHECK(crowd.polls >= 10);
  CHECK(crowd.polls <= 100);
  CHECK(crowd.yields >= 10);
  CHECK(wire.yields >= 100);
}
