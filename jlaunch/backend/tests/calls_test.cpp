// What a group refuses, what it keeps apart, and what it leaves behind.

#include <cstddef>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include "dtype.h"
#include "support.h"

using namespace jlaunch;
using namespace jlaunch::test;

TEST_CASE("sizes that do not fit are refused") {
  const World world(2);
  CHECK(run_threads(world, [&](int rank) {
    const auto group = world.join(rank);
    float value = 0;
    const auto refused = [&](auto call) {
      try {
        call();
      } catch (const std::invalid_argument&) {
        return true;
      }
      return false;
    };
    RANK_CHECK(refused(
        [&] { group->sum_scatter(&value, &value, 3, Dtype::float32); }));
    RANK_CHECK(refused([&] { group->send(&value, 1, Dtype::float32, rank); }));
    RANK_CHECK(refused([&] { group->recv(&value, 1, Dtype::float32, 2); }));
  }));
}

TEST_CASE("messages that arrive during a collective are kept for their recv") {
  const World world(3);
  constexpr std::size_t kMessages = 40; // more than there are frames
  constexpr std::size_t kCount = 20000;
  CHECK(run_processes(world, [&](int rank) {
    const auto group = world.join(rank);
    const auto message = [](std::size_t i) {
      return std::vector<float>(kCount, static_cast<float>(i));
    };
    std::vector<float> sum(1);
    const float one = 1;
    if (rank == 0) {
      for (std::size_t i = 0; i < kMessages; ++i) {
        group->send(message(i).data(), kCount, Dtype::float32, 1);
      }
    }
    group->all_sum(&one, sum.data(), 1, Dtype::float32);
    RANK_CHECK(sum[0] == 3);
    if (rank == 1) {
      std::vector<float> got(kCount);
      for (std::size_t i = 0; i < kMessages; ++i) {
        group->recv(got.data(), kCount, Dtype::float32, 0);
        RANK_CHECK(got == message(i));
      }
    }
    group->all_sum(&one, sum.data(), 1, Dtype::float32);
    RANK_CHECK(sum[0] == 3);
  }));
}

TEST_CASE("a collective that a peer has entered waits behind a recv") {
  const World world(3);
  CHECK(run_processes(world, [&](int rank) {
    const auto group = world.join(rank);
    const float one = 1;
    float value = 0;
    if (rank == 0) {
      wait_for(world.meeting->step, 1); // rank 2 is in the collective by now
      group->send(&one, 1, Dtype::float32, 1);
    } else if (rank == 1) {
      group->recv(&value, 1, Dtype::float32, 0);
      RANK_CHECK(value == 1);
    } else {
      set(world.meeting->step, 1);
    }
    group->all_sum(&one, &value, 1, Dtype::float32);
    RANK_CHECK(value == 3);
  }));
}

TEST_CASE("nothing is left in the provider's directory") {
  const World world(3);
  CHECK(run_processes(world, [&](int rank) {
    const auto group = world.join(rank);
    float value = 1;
    for (int i = 0; i < 10; ++i) {
      group->all_sum(&value, &value, 1, Dtype::float32);
    }
    // All have connected: the names are gone while the group lives.
    RANK_CHECK(world.dir.entries() == 0);
  }));
}
