#include "lease.h"

#include <cstdint>
#include <initializer_list>

#include <doctest/doctest.h>

using jlaunch::Lease;

namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

} // namespace

TEST_CASE("a fresh heartbeat lets the keeper sleep until the probation") {
  Lease lease;
  const auto step = lease.look(100 * kSecond, 100 * kSecond, 8 * kSecond);
  CHECK_FALSE(step.lapsed);
  CHECK(step.wake_at_ns == 106 * kSecond);
}

TEST_CASE(
    "silence lapses exactly at the lease, after every slice was on time") {
  Lease lease;
  std::uint64_t now = 0;
  auto step = lease.look(now, 0, 8 * kSecond);
  int looks = 0;
  while (!step.lapsed && ++looks < 100) {
    now = step.wake_at_ns;
    step = lease.look(now, 0, 8 * kSecond);
  }
  CHECK(step.lapsed);
  CHECK(now == 8 * kSecond);
}

TEST_CASE("a heartbeat during the probation ends it") {
  Lease lease;
  lease.look(7 * kSecond, 0, 8 * kSecond);
  const auto step = lease.look(7 * kSecond + 1, 7 * kSecond, 8 * kSecond);
  CHECK_FALSE(step.lapsed);
  CHECK(step.wake_at_ns == 13 * kSecond);
}

TEST_CASE("looking early, at a spurious wake-up, changes nothing") {
  Lease lease;
  auto step = lease.look(6 * kSecond, 0, 8 * kSecond);
  for (std::uint64_t early = 0; early < 100; ++early) {
    step = lease.look(6 * kSecond + early, 0, 8 * kSecond);
  }
  CHECK(step.wake_at_ns == 6 * kSecond + kSecond / 2);
}

TEST_CASE("a process that was stopped gives the agent a fresh probation") {
  SUBCASE("before the probation") {
    Lease lease;
    lease.look(0, 0, 8 * kSecond);
    CHECK_FALSE(lease.look(1000 * kSecond, 0, 8 * kSecond).lapsed);
    CHECK(
        lease.look(1000 * kSecond, 0, 8 * kSecond).wake_at_ns ==
        1000 * kSecond + kSecond / 2);
  }
  SUBCASE("within the probation, and again and again") {
    Lease lease;
    std::uint64_t now = 6 * kSecond;
    auto step = lease.look(now, 0, 8 * kSecond);
    for (int stop = 0; stop < 20; ++stop) {
      now = step.wake_at_ns + 10 * kSecond;
      step = lease.look(now, 0, 8 * kSecond);
      CHECK_FALSE(step.lapsed);
    }
    for (unsigned slice = 0; slice < Lease::kSlices; ++slice) {
      CHECK_FALSE(step.lapsed);
      step = lease.look(step.wake_at_ns, 0, 8 * kSecond);
    }
    CHECK(step.lapsed);
  }
}

TEST_CASE("for ever never lapses and never overflows") {
  Lease lease;
  for (const std::uint64_t now : {kSecond, UINT64_MAX / 2, UINT64_MAX - 1}) {
    const auto step = lease.look(now, kSecond, Lease::kForever);
    CHECK_FALSE(step.lapsed);
    CHECK(step.wake_at_ns == Lease::kForever);
  }
}
