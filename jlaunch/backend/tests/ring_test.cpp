// The ring, and several wires between two ranks: every collective at the sizes
// around each frame's end, right and the same on all ranks and in every run.

#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include "dtype.h"
#include "support.h"

using namespace jlaunch;
using namespace jlaunch::test;

namespace {

constexpr std::size_t kFrame = 128 << 10; // up to four ranks

/** What a rank puts in: sums of it are exact, so every order gives the same. */
std::int32_t value_at(int rank, std::size_t i) {
  return static_cast<std::int32_t>(
      (i * 7 + static_cast<std::size_t>(rank) * 1000003) % 65521);
}

std::vector<std::int32_t> values_of(int rank, std::size_t count) {
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = value_at(rank, i);
  }
  return values;
}

std::int32_t sum_at(int ranks, std::size_t i) {
  std::int32_t sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += value_at(rank, i);
  }
  return sum;
}

/** Element counts one less than, at and one more than what matters. */
std::vector<std::size_t> counts_of(int ranks) {
  const auto item = sizeof(std::int32_t);
  std::vector<std::size_t> counts{0, 1, 2, 1000};
  for (const auto bytes :
       {std::size_t{32} << 10,
        kFrame,
        kFrame * static_cast<std::size_t>(ranks)}) {
    counts.insert(
        counts.end(), {bytes / item - 1, bytes / item, bytes / item + 1});
  }
  counts.push_back(9 * kFrame * static_cast<std::size_t>(ranks) / item + 13);
  return counts;
}

void reduce_one(Group& group, std::size_t count) {
  const auto in = values_of(group.rank(), count);
  std::vector<std::int32_t> out(count, -1);
  group.all_sum(in.data(), out.data(), count, Dtype::int32);
  auto largest = in;
  group.all_max(largest.data(), largest.data(), count, Dtype::int32);
  for (std::size_t i = 0; i < count; ++i) {
    RANK_CHECK(out[i] == sum_at(group.size(), i));
    std::int32_t max = value_at(0, i);
    for (int rank = 1; rank < group.size(); ++rank) {
      max = std::max(max, value_at(rank, i));
    }
    RANK_CHECK(largest[i] == max);
  }
}

void gather_and_scatter(Group& group, std::size_t count) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto in = values_of(group.rank(), count);
  std::vector<std::int32_t> all(count * ranks, -1);
  group.all_gather(in.data(), all.data(), count, Dtype::int32);
  for (std::size_t i = 0; i < all.size(); ++i) {
    RANK_CHECK(all[i] == value_at(static_cast<int>(i / count), i % count));
  }
  const auto wide = values_of(group.rank(), count * ranks);
  std::vector<std::int32_t> part(count, -1);
  group.sum_scatter(wide.data(), part.data(), wide.size(), Dtype::int32);
  const auto first = count * static_cast<std::size_t>(group.rank());
  for (std::size_t i = 0; i < count; ++i) {
    RANK_CHECK(part[i] == sum_at(group.size(), first + i));
  }
}

/** To the right, even ranks first, so that nobody waits in a circle. */
void pass_right(Group& group, std::size_t count) {
  const int size = group.size();
  const int right = (group.rank() + 1) % size;
  const int left = (group.rank() + size - 1) % size;
  const auto out = values_of(group.rank(), count);
  std::vector<std::int32_t> in(count, -1);
  const bool first = group.rank() % 2 == 0;
  if (first) {
    group.send(out.data(), count, Dtype::int32, right);
  }
  group.recv(in.data(), count, Dtype::int32, left);
  if (!first) {
    group.send(out.data(), count, Dtype::int32, right);
  }
  RANK_CHECK(in == values_of(left, count));
}

void do_everything(Group& group) {
  for (const auto count : counts_of(group.size())) {
    reduce_one(group, count);
    gather_and_scatter(group, count);
    pass_right(group, count);
  }
}

/** A hash of what sums of awkward numbers gave, whose order matters. */
std::uint64_t awkward_sums(Group& group) {
  std::uint64_t hash = 1469598103934665603U;
  for (const auto dtype :
       {Dtype::float16,
        Dtype::bfloat16,
        Dtype::float32,
        Dtype::float64,
        Dtype::complex64}) {
    for (const std::size_t count : {std::size_t{7}, std::size_t{200001}}) {
      std::vector<std::byte> bytes(count * size_of(dtype));
      std::uint32_t state = 12345U + static_cast<std::uint32_t>(group.rank());
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        state = state * 1664525U + 1013904223U;
        // Exponents around that of one, so that sums are finite and inexact.
        const bool top = i % size_of(dtype) % 4 == 3 ||
            i % size_of(dtype) == size_of(dtype) - 1;
        bytes[i] = top ? std::byte{0x3c} : static_cast<std::byte>(state >> 24);
      }
      group.all_sum(bytes.data(), bytes.data(), count, dtype);
      for (const auto byte : bytes) {
        hash = (hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211U;
      }
    }
  }
  return hash;
}

} // namespace

TEST_CASE("a ring with one to four wires does every collective") {
  for (int size = 2; size <= 5; ++size) {
    for (const int wires : {1, 2, 3, 4}) {
      CAPTURE(size);
      CAPTURE(wires);
      World world(size);
      world.ring = true;
      world.wires = wires;
      CHECK(run_processes(
          world, [&](int rank) { do_everything(*world.join(rank)); }));
    }
  }
}

TEST_CASE("a mesh with two to four wires does every collective") {
  for (int size = 2; size <= 4; ++size) {
    for (const int wires : {2, 3, 4}) {
      CAPTURE(size);
      CAPTURE(wires);
      World world(size);
      world.wires = wires;
      CHECK(run_processes(
          world, [&](int rank) { do_everything(*world.join(rank)); }));
    }
  }
}

TEST_CASE("threads as ranks of a ring and of a mesh with wires") {
  for (const bool ring : {true, false}) {
    CAPTURE(ring);
    World world(3);
    world.ring = ring;
    world.wires = 2;
    CHECK(run_threads(world, [&](int rank) {
      const auto group = world.join(rank);
      for (const std::size_t count : {std::size_t{5}, std::size_t{300000}}) {
        reduce_one(*group, count);
        gather_and_scatter(*group, count);
        pass_right(*group, count);
      }
    }));
  }
}

TEST_CASE("awkward sums have the same bits on all ranks and in every run") {
  for (const bool ring : {true, false}) {
    CAPTURE(ring);
    std::vector<std::uint64_t> runs;
    for (const int wires : {1, 1, 3}) {
      World world(4);
      world.ring = ring;
      world.wires = wires;
      const Shared<std::array<std::uint64_t, 8>> hashes;
      CHECK(run_processes(world, [&](int rank) {
        (*hashes)[static_cast<std::size_t>(rank)] =
            awkward_sums(*world.join(rank));
      }));
      runs.insert(runs.end(), hashes->begin(), hashes->begin() + 4);
    }
    for (const auto run : runs) {
      CHECK(run == runs.front());
    }
  }
}

TEST_CASE("a ring sends to neighbours only, and says so before it sends") {
  World world(4);
  world.ring = true;
  CHECK(run_processes(world, [&](int rank) {
    const auto group = world.join(rank);
    const std::int32_t one = 1;
    bool refused = false;
    try {
      group->send(&one, 1, Dtype::int32, (rank + 2) % 4);
    } catch (const std::invalid_argument& error) {
      refused =
          std::string(error.what()).find("neighbour") != std::string::npos;
    }
    RANK_CHECK(refused);
    reduce_one(*group, 10); // nothing was sent: the group goes on
  }));
}

TEST_CASE("wires that are not as many both ways are refused") {
  World world(2);
  CHECK(run_processes(world, [&](int rank) {
    auto config = world.config(rank);
    config.wires = rank + 1;
    const auto group = Group::open(config);
    const auto addresses = world.meeting->exchange(rank, 2, group->address());
    bool refused = false;
    try {
      group->connect(addresses);
    } catch (const CollectiveError& error) {
      refused = std::string(error.what()).find("wires") != std::string::npos;
    }
    RANK_CHECK(refused);
    world.meeting->barrier(2, 2);
  }));
}

TEST_CASE("a mesh and a ring of 64 ranks") {
  for (const bool ring : {true, false}) {
    CAPTURE(ring);
    World world(64);
    world.ring = ring;
    CHECK(run_processes(world, [&](int rank) {
      const auto group = world.join(rank);
      reduce_one(*group, 3);
      reduce_one(*group, 20000);
      gather_and_scatter(*group, 5);
    }));
  }
}
