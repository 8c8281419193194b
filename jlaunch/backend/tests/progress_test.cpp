// The poll loop over scripted completions: what a device may do to it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "deadline.h"
#include "fake_verbs.h"
#include "group_impl.h"
#include "platform.h"
#include "support.h"

using namespace jlaunch;
using namespace jlaunch::test;
using namespace std::chrono_literals;

namespace {

/** Rank 0 of a group of two; rank 1 is the script. */
struct Scripted {
  explicit Scripted(
      std::chrono::nanoseconds deadline = 100ms,
      ControlBlock* block = nullptr,
      HostBlock* host = nullptr)
      : Scripted(config_of(deadline, block, host)) {}

  explicit Scripted(const GroupConfig& config)
      : group(open_group(config, FakeVerbs::api())) {
    auto peer = group->address();
    peer[offsetof(AddressHeader, rank)] = std::byte{1};
    // Our wire to rank 1 stands for its wire to us.
    const auto wires = peer.begin() + sizeof(AddressHeader);
    std::copy_n(wires + sizeof(Destination), sizeof(Destination), wires);
    const std::vector<std::vector<std::byte>> addresses{group->address(), peer};
    group->connect(addresses);
  }

  static GroupConfig config_of(
      std::chrono::nanoseconds deadline,
      ControlBlock* block,
      HostBlock* host) {
    GroupConfig config;
    config.size = 2;
    config.deadline = deadline;
    config.block = block;
    config.host_block = host;
    return config;
  }

  float sum(float mine) {
    float out = 0;
    group->all_sum(&mine, &out, 1, Dtype::float32);
    return out;
  }

  Failure failure_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const CollectiveError& e) {
      return e.failure();
    }
    return {};
  }

  FakeVerbs verbs;
  std::unique_ptr<Group> group;
};

std::vector<std::byte> payload(float value) {
  std::vector<std::byte> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

FrameHeader sum_frame(std::uint64_t seq) {
  return frame_from_peer(Collective::all_sum, Dtype::float32, 1, seq);
}

/** The wr_id of the first send, before it was made. */
constexpr std::uint64_t kFirstSend = WorkId{WorkId::Kind::send, 1, 0}.pack();

} // namespace

TEST_CASE("scripted: a collective is done when its frames and sends are") {
  Scripted script;
  script.verbs.deliver(sum_frame(1), payload(41));
  script.verbs.complete(kFirstSend, abi::IBV_WC_SUCCESS);
  CHECK(script.sum(1) == 42);
}

TEST_CASE(
    "scripted: on hardware a call's sends must have left before it returns") {
  Scripted script;
  script.verbs.deliver(sum_frame(1), payload(41));
  const auto failure = script.failure_of([&] { script.sum(1); });
  CHECK(failure.kind == Failure::Kind::peer_lost);
  REQUIRE(failure.lost.size() == 1);
  CHECK(failure.lost[0].rank == 1);
}

TEST_CASE(
    "scripted: a failed completion is a failure, whatever its other fields") {
  Scripted script;
  script.verbs.deliver(sum_frame(1), payload(41));
  script.verbs.completions.back().status = abi::IBV_WC_RETRY_EXC_ERR;
  const auto failure = script.failure_of([&] { script.sum(1); });
  CHECK(failure.kind == Failure::Kind::verbs);
  CHECK(failure.detail.find("rank 1") != std::string::npos);
  CHECK(failure.detail.find("status 12") != std::string::npos);
  // Sticky: at once, the same.
  CHECK(script.failure_of([&] { script.sum(1); }).detail == failure.detail);
  CHECK(script.group->failure().detail == failure.detail);
}

TEST_CASE("scripted: an error status with a wr_id of nobody does no harm") {
  Scripted script;
  script.verbs.complete(~std::uint64_t{0}, abi::IBV_WC_FATAL_ERR);
  CHECK(script.failure_of([&] { script.sum(1); }).kind == Failure::Kind::verbs);
}

TEST_CASE("scripted: completions that cannot be are failures") {
  Scripted script;
  SUBCASE("a receive twice") {
    script.verbs.deliver(sum_frame(1), payload(41));
    script.verbs.completions.push_back(script.verbs.completions.back());
  }
  SUBCASE("a send twice") {
    script.verbs.complete(kFirstSend, abi::IBV_WC_SUCCESS);
    script.verbs.complete(kFirstSend, abi::IBV_WC_SUCCESS);
  }
  SUBCASE("of no known rank") {
    script.verbs.complete(
        WorkId{WorkId::Kind::recv, 9, 0}.pack(), abi::IBV_WC_SUCCESS);
  }
  SUBCASE("of no known frame") {
    script.verbs.complete(
        WorkId{WorkId::Kind::recv, 1, 999}.pack(), abi::IBV_WC_SUCCESS);
  }
  SUBCASE("of no known kind") {
    script.verbs.complete(0x7F00000100000000U, abi::IBV_WC_SUCCESS);
  }
  SUBCASE("shorter than a header") {
    script.verbs.deliver_bytes(sum_frame(1), payload(41), 8);
  }
  SUBCASE("shorter than the header says") {
    script.verbs.deliver_bytes(
        sum_frame(1), payload(41), sizeof(FrameHeader) + 2);
  }
  SUBCASE("of another version") {
    auto header = sum_frame(1);
    header.version = 77;
    script.verbs.deliver(header, payload(41));
  }
  SUBCASE("from another rank") {
    auto header = sum_frame(1);
    header.source = 0;
    script.verbs.deliver(header, payload(41));
  }
  SUBCASE("out of order") {
    auto header = sum_frame(1);
    header.chunk = 1;
    script.verbs.deliver(header, payload(41));
  }
  SUBCASE("a poll fails") {
    script.verbs.poll_error = -1;
  }
  SUBCASE("a post fails") {
    script.verbs.post_error = 12;
  }
  const auto failure = script.failure_of([&] { script.sum(1); });
  CHECK(failure.kind == Failure::Kind::verbs);
  CHECK_FALSE(failure.detail.empty());
}

TEST_CASE("scripted: frames of an old epoch or another group are dropped") {
  Scripted script(50ms);
  auto old = sum_frame(1);
  old.epoch = 0;
  auto other = sum_frame(1);
  other.group = 7;
  for (const auto& header : {old, other, old, other}) { // all the buffers
    script.verbs.deliver(header, payload(1000));
  }
  script.verbs.complete(kFirstSend, abi::IBV_WC_SUCCESS);
  const auto failure = script.failure_of([&] { script.sum(1); });
  CHECK(failure.kind == Failure::Kind::peer_lost); // nothing but old frames
  CHECK(failure.lost[0].reason == Reason::stuck);
  CHECK(script.verbs.receives.size() == 4); // and all buffers are posted again
}

TEST_CASE("scripted: a desync names both calls") {
  Shared<ControlBlock> block;
  Scripted script(100ms, &*block);
  const auto there = frame_from_peer(Collective::all_max, Dtype::int32, 1, 1);
  script.verbs.deliver(there, payload(0));
  const auto failure = script.failure_of([&] { script.sum(1); });
  CHECK(failure.kind == Failure::Kind::peer_lost);
  REQUIRE(failure.lost.size() == 1);
  CHECK(failure.lost[0].rank == 1);
  CHECK(failure.lost[0].reason == Reason::desync);
  CHECK(failure.detail.find("all_max 1 (int32 x 1)") != std::string::npos);
  CHECK(failure.detail.find("all_sum 1 (float32 x 1)") != std::string::npos);
  const auto& part = block->rank_part;
  CHECK(part.desync_peer == 2);
  CHECK(part.desync_here == sum_frame(1).fingerprint);
  CHECK(part.desync_there == there.fingerprint);
  CHECK(part.in_wait == 0);
}

TEST_CASE("scripted: the same call with another number is a desync too") {
  Scripted script;
  script.verbs.deliver(sum_frame(2), payload(0));
  const auto failure = script.failure_of([&] { script.sum(1); });
  REQUIRE(failure.lost.size() == 1);
  CHECK(failure.lost[0].reason == Reason::desync);
}

TEST_CASE(
    "scripted: a message does not count as a desync, nor a wrong one as a "
    "message") {
  Scripted script;
  auto message = frame_from_peer(Collective::send, Dtype::float32, 1, 1);
  script.verbs.deliver(message, payload(7));
  script.verbs.deliver(sum_frame(1), payload(41));
  script.verbs.complete(kFirstSend, abi::IBV_WC_SUCCESS);
  CHECK(script.sum(1) == 42);
  float got = 0;
  script.group->recv(&got, 1, Dtype::float32, 1);
  CHECK(got == 7);
  message.seq = 2;
  script.verbs.deliver(message, payload(7));
  std::vector<float> two(2);
  const auto failure = script.failure_of(
      [&] { script.group->recv(two.data(), 2, Dtype::float32, 1); });
  REQUIRE(failure.lost.size() == 1);
  CHECK(failure.lost[0].reason == Reason::desync);
}

TEST_CASE("scripted: without a control block the deadline itself decides") {
  Scripted script(50ms);
  script.verbs.complete(kFirstSend, abi::IBV_WC_SUCCESS);
  const auto start = std::chrono::steady_clock::now();
  const auto failure = script.failure_of([&] { script.sum(1); });
  const auto took = std::chrono::steady_clock::now() - start;
  CHECK(took >= 50ms);
  CHECK(failure.kind == Failure::Kind::peer_lost);
  REQUIRE(failure.lost.size() == 1);
  CHECK(failure.lost[0].rank == 1);
  CHECK(failure.lost[0].reason == Reason::stuck);
  CHECK(failure.waited_s >= 0.05);
}

TEST_CASE("scripted: with a control block it asks, and goes on waiting") {
  Shared<ControlBlock> block;
  Shared<HostBlock> host;
  Scripted script(30ms, &*block, &*host);
  script.verbs.complete(kFirstSend, abi::IBV_WC_SUCCESS);
  std::thread agent([&] {
    wait_for(host->doorbell, 2); // not answered: asked again
    auto& verdict = block->verdict;
    verdict.kind = static_cast<std::uint32_t>(VerdictKind::stop);
    verdict.verdict = 1;
    block->bell.fetch_add(1);
    futex_wake(block->bell);
  });
  const auto failure = script.failure_of([&] { script.sum(1); });
  agent.join();
  CHECK(failure.kind == Failure::Kind::job_stopping);
  CHECK(block->rank_part.question >= 2);
  CHECK(block->rank_part.slots[0].completed_seq == 0);
}

TEST_CASE("scripted: what the lost rank completed is waited for") {
  Shared<ControlBlock> block;
  Shared<HostBlock> host;
  Scripted script(30ms, &*block, &*host);
  script.verbs.complete(kFirstSend, abi::IBV_WC_SUCCESS);
  std::thread agent([&] {
    auto& verdict = block->verdict;
    const auto say = [&](VerdictKind kind, std::uint32_t number) {
      verdict.kind = static_cast<std::uint32_t>(kind);
      verdict.verdict = number;
      block->bell.fetch_add(1);
      futex_wake(block->bell);
    };
    wait_for(host->doorbell, 1);
    verdict.lost[0] = 2;
    verdict.reason[1] = static_cast<std::uint8_t>(Reason::killed);
    verdict.completed_seq[1] = 1; // this one: its frames must be on their way
    say(VerdictKind::raise, 1);
    wait_for(host->doorbell, 3); // it asks again: it still waits
    say(VerdictKind::stop, 2);
  });
  const auto failure = script.failure_of([&] { script.sum(1); });
  agent.join();
  CHECK(failure.kind == Failure::Kind::job_stopping);
}

TEST_CASE("scripted: masks and losses are by world rank, frames by rank") {
  Shared<ControlBlock> block;
  Shared<HostBlock> host;
  GroupConfig config;
  config.size = 2;
  config.id = 5;
  config.world_ranks = {3, 70};
  config.block = &*block;
  config.host_block = &*host;
  config.deadline = 30ms;
  Scripted script(config);
  script.verbs.complete(kFirstSend, abi::IBV_WC_SUCCESS);
  std::uint64_t mask = 0;
  std::thread agent([&] {
    wait_for(host->doorbell, 1);
    mask = block->rank_part.slots[1].waiting_for[1];
    auto& verdict = block->verdict;
    for (const std::size_t rank : {1U, 70U}) { // 1 is not in this group
      verdict.lost[rank / 64].fetch_or(std::uint64_t{1} << (rank % 64));
      verdict.reason[rank] = static_cast<std::uint8_t>(Reason::host_lost);
      verdict.completed_seq[rank] = 1000; // of the world: not of this group
    }
    verdict.kind = static_cast<std::uint32_t>(VerdictKind::raise);
    verdict.verdict = 1;
    block->bell.fetch_add(1);
    futex_wake(block->bell);
  });
  const auto failure = script.failure_of([&] { script.sum(1); });
  agent.join();
  CHECK(mask == std::uint64_t{1} << 6);
  CHECK(block->rank_part.question_slot == 1);
  CHECK(failure.kind == Failure::Kind::peer_lost);
  CHECK(failure.group == 5);
  REQUIRE(failure.lost.size() == 1);
  CHECK(failure.lost[0].rank == 70);
  CHECK(failure.lost[0].reason == Reason::host_lost);
}

TEST_CASE("scripted: abort breaks a call that waits, from another thread") {
  Scripted script(20s);
  script.verbs.complete(kFirstSend, abi::IBV_WC_SUCCESS);
  std::thread keeper([&] {
    std::this_thread::sleep_for(5ms); // either way round must do
    Failure failure;
    failure.kind = Failure::Kind::control_lost;
    failure.detail = "the agent is gone";
    script.group->abort(failure);
  });
  CHECK_THROWS_AS(script.sum(1), ControlLost);
  keeper.join();
  CHECK_THROWS_AS(script.sum(1), JobStopping); // sticky, and a JobStopping
  CHECK(script.group->failure().detail == "the agent is gone");
}

TEST_CASE("scripted: the first IPv4-mapped GID is used, at its index") {
  // The fake refuses RTR with any other index.
  CHECK_NOTHROW(Scripted{});
}

TEST_CASE("an address that is not of this group is refused") {
  FakeVerbs verbs;
  GroupConfig config;
  config.size = 2;
  const auto group = open_group(config, FakeVerbs::api());
  auto peer = group->address();
  const auto connect = [&] {
    const std::vector<std::vector<std::byte>> addresses{group->address(), peer};
    group->connect(addresses);
  };
  CHECK_THROWS_AS(connect(), VerbsError); // it says that it is rank 0
  peer.resize(10);
  CHECK_THROWS_AS(connect(), VerbsError);
  float value = 0;
  CHECK_THROWS_AS(
      group->all_sum(&value, &value, 1, Dtype::float32), std::logic_error);
}

TEST_CASE("errors are explained, by the number here or on macOS") {
  CHECK(explain(16).find("queue pairs") != std::string::npos);
  CHECK(explain(60).find("cannot be reached") != std::string::npos);
  CHECK(explain(102).find("not supported") != std::string::npos);
  CHECK(explain(abi::IBV_WC_RETRY_EXC_ERR) == "the peer did not answer");
}

TEST_CASE("patience counts only what we were awake for") {
  Patience patience(1s);
  constexpr std::uint64_t kMs = 1'000'000;
  patience.tick_at(1000 * kMs, 0ns);
  patience.tick_at(1010 * kMs, 0ns);
  CHECK(patience.waited() == 10ms);
  patience.tick_at(9010 * kMs, 50ms); // stopped for 8 s during a nap of 50 ms
  CHECK(patience.waited() <= 10ms + 50ms + Patience::kSlack);
  patience.tick_at(5000 * kMs, 0ns); // the clock went back
  CHECK(patience.waited() <= 10ms + 50ms + Patience::kSlack);
  CHECK_FALSE(patience.exhausted());
  patience.tick_at(6000 * kMs, 1s);
  CHECK(patience.exhausted());
  patience.restart();
  CHECK(patience.waited() == 0ns);
  CHECK_FALSE(Patience(0ns).limited());
}
