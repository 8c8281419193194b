#include "block_ops.h"

#include <memory>
#include <thread>

#include <doctest/doctest.h>

#include "actor.h"
#include "mapping.h"
#include "platform.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace jlaunch;
using jlaunch::test::Scratch;

namespace {

LossEntry loss(std::uint32_t rank, Reason reason, std::uint64_t seq = 0) {
  return {rank, reason, seq, false};
}

} // namespace

TEST_CASE("a new block is private, real and empty") {
  const Scratch scratch;
  const auto rank = RankMapping::create(scratch.path("rank"), 3, 7);
  struct stat info{};
  REQUIRE(::stat(rank->path().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(info.st_size == static_cast<off_t>(kControlBlockBytes));
  CHECK(info.st_blocks * 512 >= static_cast<off_t>(kControlBlockBytes));
  CHECK(rank->block().rank == 3);
  CHECK(rank->block().started_epoch == 7);
  const RankSnapshot seen = read_rank(rank->block());
  CHECK_FALSE(seen.owner_alive);
  CHECK_FALSE(seen.torn);
  CHECK(seen.waits.empty());
  CHECK_THROWS_AS(
      RankMapping::create(rank->path(), 3, 7), const std::system_error&);
}

TEST_CASE("what is not a block of ours is refused, with what was found") {
  const Scratch scratch;
  const std::string path = scratch.path("rank");
  RankMapping::create(path, 0, 1);
  CHECK_NOTHROW(RankMapping::open(path));
  CHECK_THROWS_AS(HostMapping::open(path), const BlockError&);
  CHECK_THROWS_AS(
      RankMapping::open(scratch.path("none")), const std::system_error&);
  SUBCASE("another version") {
    RankMapping::open(path)->block().version = 99;
    CHECK_THROWS_AS(RankMapping::open(path), const BlockError&);
  }
  SUBCASE("another size") {
    REQUIRE(::truncate(path.c_str(), 100) == 0);
    CHECK_THROWS_AS(RankMapping::open(path), const BlockError&);
  }
  SUBCASE("open to others") {
    REQUIRE(::chmod(path.c_str(), 0640) == 0);
    CHECK_THROWS_AS(RankMapping::open(path), const BlockError&);
  }
  SUBCASE("a link") {
    REQUIRE(::symlink(path.c_str(), scratch.path("link").c_str()) == 0);
    CHECK_THROWS_AS(
        RankMapping::open(scratch.path("link")), const std::system_error&);
  }
}

TEST_CASE("a rank's half is read as it was written") {
  const auto block = std::make_unique<ControlBlock>();
  RankPart& part = block->rank_part;
  part.progress = 11;
  part.question = 2;
  part.question_slot = 1;
  part.desync_peer = 1; // rank 0
  part.desync_here = 5;
  part.desync_seq_there = 7;
  part.slots[0].completed_seq = 6;
  GroupSlot& slot = part.slots[1]; // another group's
  slot.collective = static_cast<std::uint32_t>(Collective::all_gather);
  slot.seq = 9;
  slot.completed_seq = 8;
  slot.bytes = 1 << 24;
  slot.waiting_for[0] = 0b1001;
  slot.waiting_for[kMaskWords - 1] = std::uint64_t{1} << 63;
  const RankSnapshot seen = read_rank(*block);
  CHECK(seen.progress == 11);
  CHECK(seen.question == 2);
  CHECK(seen.completed_seq == 6);
  REQUIRE(seen.desync);
  CHECK(seen.desync->peer == 0);
  CHECK(seen.desync->here == 5);
  CHECK(seen.desync->seq_there == 7);
  REQUIRE(seen.waits.size() == 1);
  CHECK(seen.waits[0].slot == 1);
  CHECK(seen.waits[0].collective == Collective::all_gather);
  CHECK(seen.waits[0].waiting_for == std::vector<std::uint32_t>{0, 3, 1023});
  CHECK_FALSE(seen.torn);
}

TEST_CASE("a writer frozen in an update is read past, and that is said") {
  const auto block = std::make_unique<ControlBlock>();
  block->rank_part.slots[0].lock = 7;
  block->rank_part.slots[0].completed_seq = 4;
  const RankSnapshot seen = read_rank(*block);
  CHECK(seen.torn);
  CHECK(seen.completed_seq == 4);
  SUBCASE("a new holder makes it whole") {
    reset_rank_part(block->rank_part);
    CHECK_FALSE(read_rank(*block).torn);
    CHECK(block->rank_part.slots[0].lock % 2 == 0);
  }
}

TEST_CASE("a reader beside a busy writer sees whole updates only") {
  const auto block = std::make_unique<ControlBlock>();
  GroupSlot& slot = block->rank_part.slots[0];
  slot.collective = 1;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      slot.lock.fetch_add(1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_release);
      slot.seq.store(i, std::memory_order_relaxed);
      slot.bytes.store(2 * i, std::memory_order_relaxed);
      slot.lock.fetch_add(1, std::memory_order_release);
    }
  });
  int whole = 0;
  while (whole < 2000) {
    const RankSnapshot seen = read_rank(*block);
    if (!seen.torn) {
      REQUIRE(seen.waits[0].bytes == 2 * seen.waits[0].seq);
      ++whole;
    }
  }
  stop = true;
  writer.join();
}

TEST_CASE("a verdict is written whole and rings the bell") {
  const auto block = std::make_unique<ControlBlock>();
  const VerdictPart& part = block->verdict;
  const LossEntry losses[] = {
      {2, Reason::killed, 41, false}, {1023, Reason::exited, 40, true}};
  write_verdict(*block, 5, VerdictKind::raise, losses, 3);
  CHECK(block->bell == 1);
  CHECK(part.lock % 2 == 0);
  CHECK(part.verdict == 5);
  CHECK(part.kind == static_cast<std::uint32_t>(VerdictKind::raise));
  CHECK(part.answered == 3);
  CHECK(part.losses == 2);
  CHECK(part.lost[0] == 0b100);
  CHECK(part.reason[2] == static_cast<std::uint8_t>(Reason::killed));
  CHECK(part.completed_seq[2] == 41);
  CHECK(part.lost[kMaskWords - 1] == std::uint64_t{1} << 63);
  CHECK(part.clean[kMaskWords - 1] == std::uint64_t{1} << 63);
  CHECK(part.clean[0] == 0);
}

TEST_CASE("a verdict wakes who sleeps on the bell") {
  const auto block = std::make_unique<ControlBlock>();
  std::thread rank([&] {
    while (block->verdict.verdict == 0) {
      const std::uint32_t bell = block->bell;
      if (block->verdict.verdict == 0) {
        futex_wait(block->bell, bell);
      }
    }
  });
  write_verdict(*block, 1, VerdictKind::stop, {}, 0);
  rank.join();
}

TEST_CASE("keep waiting answers and changes nothing else") {
  const auto block = std::make_unique<ControlBlock>();
  const VerdictPart& part = block->verdict;
  write_verdict(*block, 1, VerdictKind::keep_waiting, {}, 4);
  CHECK(part.answered == 4);
  CHECK(part.kind == 0);
  CHECK(part.verdict == 0);
  const LossEntry losses[] = {loss(1, Reason::killed)};
  write_verdict(*block, 2, VerdictKind::raise, losses, 0);
  CHECK(part.answered == 4); // never lowered
  write_verdict(*block, 3, VerdictKind::keep_waiting, {}, 5);
  CHECK(part.answered == 5);
  CHECK(part.kind == static_cast<std::uint32_t>(VerdictKind::raise));
  CHECK(part.verdict == 2);
  CHECK(part.losses == 1);
  CHECK(block->bell == 3);
}

TEST_CASE("stop outranks raise and is never taken back") {
  const auto block = std::make_unique<ControlBlock>();
  const VerdictPart& part = block->verdict;
  const LossEntry one[] = {loss(1, Reason::killed)};
  const LossEntry two[] = {loss(1, Reason::killed), loss(2, Reason::paused)};
  write_verdict(*block, 1, VerdictKind::raise, one, 0);
  write_verdict(*block, 2, VerdictKind::stop, {}, 0);
  CHECK(part.kind == static_cast<std::uint32_t>(VerdictKind::stop));
  CHECK(part.losses == 1); // what was told stands
  write_verdict(*block, 3, VerdictKind::raise, two, 0);
  CHECK(part.kind == static_cast<std::uint32_t>(VerdictKind::stop));
  CHECK(part.losses == 2);
}

TEST_CASE("a verdict that makes no sense is refused and writes nothing") {
  const auto block = std::make_unique<ControlBlock>();
  const LossEntry far[] = {loss(kMaxRanks, Reason::killed)};
  const LossEntry none[] = {loss(1, Reason::none)};
  CHECK_THROWS_AS(
      write_verdict(*block, 1, VerdictKind::raise, far, 0),
      const std::invalid_argument&);
  CHECK_THROWS_AS(
      write_verdict(*block, 1, VerdictKind::raise, none, 0),
      const std::invalid_argument&);
  CHECK_THROWS_AS(
      write_verdict(*block, 1, VerdictKind::none, {}, 0),
      const std::invalid_argument&);
  CHECK(block->bell == 0);
  CHECK(block->verdict.lock == 0);
}
