// Ranks that die, stop, are late or leave, with the test as their agent. Real
// processes over the real soft provider.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <signal.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "platform.h"
#include "support.h"

using namespace jlaunch;
using namespace jlaunch::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kBig = 1 << 20; // floats: many frames

/** What a rank saw, told to the test through shared memory. */
struct Seen {
  std::atomic<std::uint32_t> caught{0}; // 1 + kind
  std::atomic<std::uint32_t> lost_mask{0};
  std::array<std::atomic<std::uint32_t>, 8> reasons{};
  std::atomic<std::uint64_t> seq{0};
  std::atomic<std::uint64_t> at_ns{0};
  std::atomic<std::uint32_t> again{0}; // the same failure on the next call
  std::atomic<std::uint64_t> again_ns{0}; // and how long that took

  void note(const Failure& failure) {
    at_ns = monotonic_ns();
    seq = failure.seq;
    for (const auto& lost : failure.lost) {
      lost_mask.fetch_or(1U << lost.rank);
      reasons[static_cast<std::size_t>(lost.rank)] =
          static_cast<std::uint32_t>(lost.reason);
    }
    set(caught, 1 + static_cast<std::uint32_t>(failure.kind));
  }
};

constexpr std::uint32_t caught_as(Failure::Kind kind) {
  return 1 + static_cast<std::uint32_t>(kind);
}

using AllSeen = std::array<Seen, 5>;

/** All-reduces for ever, until the group fails; notes how. */
void loop_until_failure(Group& group, Seen& seen, std::size_t count) {
  std::vector<float> values(count, 1.0F);
  std::vector<float> sum(count);
  const auto call = [&] {
    group.all_sum(values.data(), sum.data(), count, Dtype::float32);
    const auto ranks = static_cast<float>(group.size());
    RANK_CHECK(sum.front() == ranks && sum.back() == ranks);
  };
  Failure first;
  try {
    for (;;) {
      call();
    }
  } catch (const CollectiveError& e) {
    first = e.failure();
    seen.note(first);
  }
  const auto before = monotonic_ns();
  try {
    call();
  } catch (const CollectiveError& e) {
    seen.again_ns = monotonic_ns() - before;
    seen.again = e.failure().detail == first.detail &&
            group.failure().detail == first.detail
        ? 1
        : 2;
  }
}

/** Waits for something that only shows in a rank's block, looking now and then;
 *  throws after kPatience. For facts without a futex of their own. */
void eventually(const char* what, const std::function<bool()>& holds) {
  const auto until = monotonic_ns() + 30'000'000'000U;
  std::atomic<std::uint32_t> nobody{0};
  while (!holds()) {
    if (monotonic_ns() > until) {
      throw std::runtime_error(std::string("in vain: ") + what);
    }
    futex_wait(nobody, 0, 500us);
  }
}

std::uint64_t completed(const World& world, int rank) {
  return world.blocks[static_cast<std::size_t>(rank)]
      ->block()
      .rank_part.slots[0]
      .completed_seq.load();
}

void run_for(const World& world, int rank, std::uint64_t collectives) {
  const auto goal = completed(world, rank) + collectives;
  eventually("collectives run", [&] { return completed(world, rank) >= goal; });
}

const ControlBlock& block_of(const World& world, int rank) {
  return world.blocks[static_cast<std::size_t>(rank)]->block();
}

bool waits_for(const World& world, int rank, std::uint64_t mask) {
  const auto& part = block_of(world, rank).rank_part;
  return part.in_wait == 1 && part.slots[0].waiting_for[0] == mask;
}

} // namespace

TEST_CASE("SIGKILL of a rank: the survivors raise PeerLost, and stay failed") {
  for (const std::size_t count : {std::size_t{1000}, kBig}) {
    CAPTURE(count);
    const World world(4);
    const Shared<AllSeen> seen;
    std::vector<Process> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto group = world.join(rank);
        loop_until_failure(
            *group, (*seen)[static_cast<std::size_t>(rank)], count);
      });
    }
    run_for(world, 0, 5);
    ranks[2].signal(SIGKILL);
    CHECK(ranks[2].wait() == -SIGKILL);
    const auto told = monotonic_ns();
    for (const int rank : {0, 1, 3}) {
      world.blocks[static_cast<std::size_t>(rank)]->say(
          VerdictKind::raise, {{2, Reason::killed, completed(world, 2)}});
    }
    for (const int rank : {0, 1, 3}) {
      CAPTURE(rank);
      auto& noted = (*seen)[static_cast<std::size_t>(rank)];
      wait_for(noted.caught, 1);
      CHECK(noted.caught == caught_as(Failure::Kind::peer_lost));
      CHECK(noted.lost_mask == 1U << 2);
      CHECK(noted.reasons[2] == static_cast<std::uint32_t>(Reason::killed));
      CHECK(noted.seq > completed(world, 2));
      CHECK(noted.at_ns - told < 500'000'000U);
      CHECK(ranks[static_cast<std::size_t>(rank)].wait() == 0);
      CHECK(noted.again == 1);
      CHECK(noted.again_ns < 50'000'000U);
      CHECK(block_of(world, rank).rank_part.in_wait == 0);
    }
  }
}

TEST_CASE(
    "a pause changes nothing; those who wait rest; the question is answered") {
  for (const std::size_t count : {std::size_t{1000}, kBig}) {
    CAPTURE(count);
    World world(3);
    world.deadline = 200ms;
    const Shared<AllSeen> seen;
    std::vector<Process> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto group = world.join(rank);
        loop_until_failure(
            *group, (*seen)[static_cast<std::size_t>(rank)], count);
      });
    }
    run_for(world, 0, 5);
    const auto rung = world.host->doorbell.load();
    ranks[1].signal(SIGSTOP);
    ranks[1].wait_stopped();
    wait_for(world.host->doorbell, rung + 1);
    // The question comes from a rank that names the stopped one.
    eventually("rank 0 asks", [&] {
      return block_of(world, 0).rank_part.question >= 1;
    });
    const auto& part = block_of(world, 0).rank_part;
    CHECK(part.question_slot == 0);
    CHECK((part.slots[0].waiting_for[0] & 2U) != 0);
    const auto question = part.question.load();
    world.blocks[0]->keep_waiting(question);
    // At rest: 1.2 s of this pause, and what rank 0 uses of a core meanwhile.
    const auto used = ranks[0].cpu_ns();
    const auto from = monotonic_ns();
    wait_for(world.host->doorbell, world.host->doorbell.load() + 8);
    const auto wall = monotonic_ns() - from;
    const auto share = static_cast<double>(ranks[0].cpu_ns() - used) /
        static_cast<double>(wall);
    MESSAGE("a waiter uses " << share * 100 << " % of a core");
    CHECK(share < 0.02);
    const auto before = completed(world, 0);
    ranks[1].signal(SIGCONT);
    eventually("it goes on", [&] { return completed(world, 0) > before + 5; });
    for (const auto& block : world.blocks) {
      block->say(VerdictKind::stop);
    }
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(ranks[rank].wait() == 0); // every sum was right
      CHECK((*seen)[rank].caught == caught_as(Failure::Kind::job_stopping));
    }
  }
}

TEST_CASE("stop reaches a rank that waits for one that never comes") {
  const World world(2);
  const Shared<AllSeen> seen;
  Process late([&] {
    const auto group = world.join(1);
    wait_for(world.meeting->step, 1);
  });
  Process waiter([&] {
    const auto group = world.join(0);
    loop_until_failure(*group, (*seen)[0], 1);
  });
  eventually("rank 0 waits", [&] { return waits_for(world, 0, 1U << 1); });
  const auto told = monotonic_ns();
  world.blocks[0]->say(VerdictKind::stop);
  CHECK(waiter.wait() == 0);
  CHECK((*seen)[0].caught == caught_as(Failure::Kind::job_stopping));
  CHECK((*seen)[0].again == 1);
  CHECK((*seen)[0].at_ns - told < 100'000'000U);
  set(world.meeting->step, 1);
  CHECK(late.wait() == 0);
}

/** The loss of a rank that had finished what a slow one is still in. */
static void lose_a_rank_that_had_finished() {
  // Rank 1 is stopped inside collective 3, its own part sent. Rank 0 comes, and
  // ranks 0 and 2 complete it; then rank 2 is killed. Rank 1 must finish 3, and
  // only fail in 4.
  const World world(3);
  const Shared<AllSeen> seen;
  const auto calls = [&](Group& group, int from, int to) {
    for (int i = from; i <= to; ++i) {
      const auto value = static_cast<float>(group.rank() + i);
      float sum = 0;
      group.all_sum(&value, &sum, 1, Dtype::float32);
      RANK_CHECK(sum == static_cast<float>(3 + 3 * i));
    }
  };
  const auto last = [&](Group& group) {
    try {
      calls(group, 4, 4);
    } catch (const CollectiveError& e) {
      (*seen)[static_cast<std::size_t>(group.rank())].note(e.failure());
    }
  };
  Process first([&] {
    const auto group = world.join(0);
    calls(*group, 1, 2);
    wait_for(world.meeting->step, 1);
    calls(*group, 3, 3);
    wait_for(world.meeting->step, 2);
    last(*group);
  });
  Process slow([&] {
    const auto group = world.join(1);
    calls(*group, 1, 3);
    last(*group);
  });
  Process victim([&] {
    const auto group = world.join(2);
    calls(*group, 1, 3);
    set(world.meeting->other, 1);
    for (;;) {
      pause();
    }
  });
  eventually("rank 1 waits in 3", [&] {
    return waits_for(world, 1, 1U << 0) && completed(world, 1) == 2;
  });
  slow.signal(SIGSTOP);
  slow.wait_stopped();
  set(world.meeting->step, 1);
  wait_for(world.meeting->other, 1);
  victim.signal(SIGKILL);
  victim.wait();
  REQUIRE(completed(world, 2) == 3);
  for (const std::size_t rank : {0U, 1U}) {
    world.blocks[rank]->say(VerdictKind::raise, {{2, Reason::killed, 3}});
  }
  slow.signal(SIGCONT);
  set(world.meeting->step, 2);
  CHECK(first.wait() == 0);
  CHECK(slow.wait() == 0);
  for (const std::size_t rank : {0U, 1U}) {
    CHECK((*seen)[rank].caught == caught_as(Failure::Kind::peer_lost));
    CHECK((*seen)[rank].seq == 4);
    CHECK((*seen)[rank].lost_mask == 1U << 2);
  }
}

TEST_CASE("loss against clean end: what the lost rank completed is finished") {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kRuns = 20;
#else
  constexpr int kRuns = 200;
#endif
  for (int run = 0; run < kRuns; ++run) {
    CAPTURE(run);
    lose_a_rank_that_had_finished();
  }
}

TEST_CASE("all lost ranks are named, each with its reason") {
  const World world(4);
  const Shared<AllSeen> seen;
  std::vector<Process> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto group = world.join(rank);
      loop_until_failure(*group, (*seen)[static_cast<std::size_t>(rank)], 10);
    });
  }
  run_for(world, 0, 3);
  ranks[1].signal(SIGKILL);
  ranks[3].signal(SIGKILL);
  ranks[1].wait();
  ranks[3].wait();
  for (const std::size_t rank : {0U, 2U}) {
    world.blocks[rank]->say(
        VerdictKind::raise,
        {{1, Reason::killed, completed(world, 1)},
         {3, Reason::host_lost, completed(world, 3)}});
  }
  for (const std::size_t rank : {0U, 2U}) {
    CHECK(ranks[rank].wait() == 0);
    CHECK((*seen)[rank].lost_mask == ((1U << 1) | (1U << 3)));
    CHECK(
        (*seen)[rank].reasons[1] == static_cast<std::uint32_t>(Reason::killed));
    CHECK(
        (*seen)[rank].reasons[3] ==
        static_cast<std::uint32_t>(Reason::host_lost));
  }
}

TEST_CASE("a rank that left in peace is missed only by what needs it") {
  const World world(3);
  const Shared<AllSeen> seen;
  std::vector<Process> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto group = world.join(rank);
      float value = 1;
      group->all_sum(&value, &value, 1, Dtype::float32);
      if (rank == 2) {
        const float gift = 9;
        group->send(&gift, 1, Dtype::float32, 0);
        return; // exit 0, its gift not received yet
      }
      wait_for(world.meeting->step, 1);
      // Between the others all is well …
      for (int i = 0; i < 3; ++i) {
        if (rank == 0) {
          group->send(&value, 1, Dtype::float32, 1);
        } else {
          group->recv(&value, 1, Dtype::float32, 0);
        }
      }
      auto& noted = (*seen)[static_cast<std::size_t>(rank)];
      if (rank == 0) { // … and so is what it had sent, but no more than that.
        group->recv(&value, 1, Dtype::float32, 2);
        RANK_CHECK(value == 9);
        try {
          group->recv(&value, 1, Dtype::float32, 2);
        } catch (const PeerLost& e) {
          set(noted.again, e.failure().lost.at(0).rank == 2 ? 1 : 2);
        }
      }
      try {
        group->all_sum(&value, &value, 1, Dtype::float32);
      } catch (const CollectiveError& e) {
        noted.note(e.failure());
      }
    });
  }
  CHECK(ranks[2].wait() == 0);
  for (const std::size_t rank : {0U, 1U}) {
    world.blocks[rank]->say(VerdictKind::raise, {{2, Reason::exited, 1, true}});
  }
  set(world.meeting->step, 1);
  for (const std::size_t rank : {0U, 1U}) {
    CHECK(ranks[rank].wait() == 0);
    CHECK((*seen)[rank].caught == caught_as(Failure::Kind::peer_lost));
    CHECK(
        (*seen)[rank].reasons[2] == static_cast<std::uint32_t>(Reason::exited));
  }
  CHECK((*seen)[0].again == 1);
}

TEST_CASE("a desync between processes is seen by both, at once") {
  const World world(2);
  const Shared<AllSeen> seen;
  CHECK(run_processes(world, [&](int rank) {
    const auto group = world.join(rank);
    std::vector<float> values(100, 1.0F);
    try {
      if (rank == 0) {
        group->all_sum(values.data(), values.data(), 100, Dtype::float32);
      } else {
        group->all_sum(values.data(), values.data(), 99, Dtype::float32);
      }
    } catch (const CollectiveError& e) {
      (*seen)[static_cast<std::size_t>(rank)].note(e.failure());
    }
  }));
  for (const std::size_t rank : {0U, 1U}) {
    CHECK((*seen)[rank].caught == caught_as(Failure::Kind::peer_lost));
    CHECK(
        (*seen)[rank].reasons[1 - rank] ==
        static_cast<std::uint32_t>(Reason::desync));
    const auto& part = world.blocks[rank]->block().rank_part;
    CHECK(part.desync_peer == 2 - rank);
    CHECK(part.desync_here != part.desync_there);
  }
  CHECK(world.host->doorbell >= 2);
}

TEST_CASE("a rank that was stopped itself does not ask on waking") {
  World world(2);
  world.deadline = 400ms;
  Process waiter([&] {
    const auto group = world.join(0);
    float value = 1;
    group->all_sum(&value, &value, 1, Dtype::float32);
    RANK_CHECK(value == 2);
  });
  Process late([&] {
    const auto group = world.join(1);
    wait_for(world.meeting->step, 1);
    float value = 1;
    group->all_sum(&value, &value, 1, Dtype::float32);
  });
  eventually("rank 0 waits", [&] { return waits_for(world, 0, 1U << 1); });
  waiter.signal(SIGSTOP);
  waiter.wait_stopped();
  // Twice the deadline, by an event that never comes.
  std::atomic<std::uint32_t> nobody{0};
  futex_wait(nobody, 0, 800ms);
  waiter.signal(SIGCONT);
  futex_wait(nobody, 0, 20ms);
  set(world.meeting->step, 1);
  CHECK(late.wait() == 0);
  CHECK(waiter.wait() == 0);
  CHECK(block_of(world, 0).rank_part.question == 0);
}

TEST_CASE("a verdict that is being written by a frozen agent is read past") {
  const World world(2);
  const Shared<AllSeen> seen;
  Process late([&] {
    const auto group = world.join(1);
    wait_for(world.meeting->step, 1);
  });
  Process waiter([&] {
    const auto group = world.join(0);
    loop_until_failure(*group, (*seen)[0], 1);
  });
  eventually("rank 0 waits", [&] { return waits_for(world, 0, 1U << 1); });
  auto& block = world.blocks[0]->block();
  block.verdict.lock.fetch_add(1); // odd, for ever
  world.blocks[0]->say(VerdictKind::stop);
  CHECK(waiter.wait() == 0);
  CHECK((*seen)[0].caught == caught_as(Failure::Kind::job_stopping));
  set(world.meeting->step, 1);
  CHECK(late.wait() == 0);
}

TEST_CASE("a forked child of a rank can neither use the group nor harm it") {
  const World world(2);
  CHECK(run_processes(world, [&](int rank) {
    auto group = world.join(rank);
    float value = 1;
    group->all_sum(&value, &value, 1, Dtype::float32);
    RANK_CHECK(Process([&] {
                 bool refused = false;
                 try {
                   group->all_sum(&value, &value, 1, Dtype::float32);
                 } catch (const std::logic_error&) {
                   refused = true;
                 }
                 RANK_CHECK(refused);
                 group.reset();
               }).wait() == 0);
    group->all_sum(&value, &value, 1, Dtype::float32);
    RANK_CHECK(value == 4);
  }));
}
