// What the control block, the verdict and the deadline cost a collective: the
// same poll loop (one template) with its supervision and with none, in turns, in
// one run. Prints the quantiles of both sides and their difference.
//
//   bench_deadline [ROUNDS]      a round is kBatch collectives of each side

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "fabric.h"
#include "mesh.h"
#include "platform.h"
#include "progress.h"
#include "supervision.h"
#include "support.h"

using namespace jlaunch;
using namespace jlaunch::test;

namespace {

constexpr int kBatch = 2000;
constexpr int kDefaultRounds = 200;

/** What the loop asks for, and nothing behind it. */
struct Unsupervised {
  std::optional<Failure> begin(const Step&) {
    return std::nullopt;
  }
  bool called() const {
    return false;
  }
  std::optional<Failure> judge(const Step&, bool&) {
    return std::nullopt;
  }
  std::optional<Failure> rest(const Step&) {
    return std::nullopt;
  }
  std::chrono::nanoseconds next_rest() const {
    return std::chrono::seconds(1);
  }
  void rested(std::chrono::nanoseconds) {}
  void moved() {}
  void end(const Step&) {}
  Failure broken(const Step&, Failure failure) {
    return failure;
  }
  Failure mismatch(const Step&) {
    return {};
  }
};

/** A collective without partners: nothing but the loop itself. */
class Nothing final : public Step {
 public:
  using Step::Step;
  bool advance() override {
    return true;
  }
  bool done() const override {
    return true;
  }
  bool waits_for(int) const override {
    return false;
  }
};

/** Nanoseconds per collective of one batch. */
template <class Batch>
double timed(const Batch& batch) {
  const auto start = monotonic_ns();
  for (int i = 0; i < kBatch; ++i) {
    batch();
  }
  return static_cast<double>(monotonic_ns() - start) / kBatch;
}

double quantile(std::vector<double> samples, double q) {
  std::ranges::sort(samples);
  return samples[static_cast<std::size_t>(
      q * static_cast<double>(samples.size() - 1))];
}

void print(
    const char* what,
    const std::vector<double>& bare,
    const std::vector<double>& supervised) {
  std::printf(
      "%s, ns per collective, %zu batches of %d\n", what, bare.size(), kBatch);
  std::printf("  %-12s %8s %8s %8s\n", "", "p10", "p50", "p90");
  const auto row = [](const char* name, const std::vector<double>& samples) {
    std::printf(
        "  %-12s %8.1f %8.1f %8.1f\n",
        name,
        quantile(samples, 0.1),
        quantile(samples, 0.5),
        quantile(samples, 0.9));
  };
  row("bare", bare);
  row("supervised", supervised);
  std::printf(
      "  difference of the medians: %.1f ns (to reach: 100)\n",
      quantile(supervised, 0.5) - quantile(bare, 0.5));
}

/** Both loops over one fabric; `step` makes the next collective. */
template <class Run>
void compare(
    const char* what,
    const World& world,
    int rank,
    Fabric& fabric,
    int rounds,
    const Run& run) {
  Supervision::Config config;
  config.rank = rank;
  config.size = world.size;
  config.deadline = std::chrono::seconds(10);
  config.block = &world.blocks[static_cast<std::size_t>(rank)]->block();
  config.host_block = &*world.host;
  Supervision supervision(config);
  Unsupervised none;
  const BellWords bell{&config.block->bell, &config.block->sleepers};
  const auto plan =
      IdlePlan::for_ranks(world.size, usable_cores(), fabric.has_bell());
  ProgressLoop<Supervision> supervised(fabric, supervision, bell, plan);
  ProgressLoop<Unsupervised> bare(fabric, none, bell, plan);
  std::vector<double> with;
  std::vector<double> without;
  std::uint64_t seq = 0;
  for (int round = 0; round < rounds; ++round) {
    without.push_back(timed([&] { run(bare, ++seq); }));
    with.push_back(timed([&] { run(supervised, ++seq); }));
  }
  if (rank == 0) {
    print(what, without, with);
  }
}

void alone(const World& world, int rounds) {
  Fabric fabric(std::make_shared<const VerbsApi>(), {});
  compare("the loop alone", world, 0, fabric, rounds, [](auto& loop, auto seq) {
    Nothing step({Collective::all_sum, Dtype::float32, 1, 4, seq});
    if (loop.run(step)) {
      std::abort();
    }
  });
}

void pair(const World& world, int rank, int rounds) {
  Fabric::Config config;
  config.rank = rank;
  config.size = 2;
  config.bell_path = world.blocks[static_cast<std::size_t>(rank)]->path();
  config.bell_offset = offsetof(ControlBlock, bell);
  Fabric fabric(load_verbs(soft_library()), config);
  fabric.connect(world.meeting->exchange(rank, 2, fabric.address()));
  MeshScratch scratch(2);
  float value = 1;
  float sum = 0;
  compare(
      "all_sum of 4 bytes, 2 ranks",
      world,
      rank,
      fabric,
      rounds,
      [&](auto& loop, auto seq) {
        DirectReduce step(
            fabric,
            scratch,
            {Collective::all_sum, Dtype::float32, 1, 4, seq},
            ReduceOp::sum,
            &value,
            &sum);
        if (loop.run(step) || sum != 2) {
          std::abort();
        }
      });
  std::fflush(stdout);
  world.meeting->barrier(2, 2);
}

} // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : kDefaultRounds;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: %s [ROUNDS]\n", argv[0]);
    return 2;
  }
  alone(World(1), rounds);
  const World world(2);
  return run_processes(world, [&](int rank) { pair(world, rank, rounds); }) ? 0
                                                                            : 1;
}
