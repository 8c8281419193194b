#include "keeper.h"

#include <csignal>
#include <string>

#include <sys/wait.h>

#include <doctest/doctest.h>

#include "actor.h"
#include "block_ops.h"
#include "lease.h"
#include "platform.h"
#include "watch.h"

using namespace jlaunch;
using jlaunch::test::Actor;
using jlaunch::test::Scratch;

namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

/** A job on one host: its block, and one rank's. */
struct Job {
  Scratch scratch;
  std::string host_path = scratch.path("host");
  std::string rank_path = scratch.path("rank");
  std::shared_ptr<HostMapping> host;
  std::shared_ptr<RankMapping> rank;

  explicit Job(
      std::uint64_t lease_ns = Lease::kForever,
      std::uint64_t grace_ns = 60 * kSecond)
      : host(HostMapping::create(host_path, lease_ns, grace_ns)),
        rank(RankMapping::create(rank_path, 2, 1)) {}

  RankSnapshot seen() const {
    return read_rank(rank->block());
  }

  std::vector<std::string> rank_role() const {
    return {"rank", rank_path, host_path};
  }
};

bool starts_with(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

} // namespace

TEST_CASE("a claim is held by its process, and left clean") {
  const Job job;
  const Watch agent(job.host);
  const std::uint32_t bell = job.host->block().doorbell;
  Actor rank(job.rank_role());
  REQUIRE(rank.hear() == "claimed");
  CHECK(job.seen().owner_alive);
  CHECK(job.seen().owner_pid == static_cast<std::uint32_t>(rank.pid()));
  CHECK(job.seen().phase == static_cast<std::uint32_t>(Phase::claimed));
  CHECK(job.host->block().doorbell > bell);
  rank.say("release");
  REQUIRE(rank.hear() == "released");
  CHECK_FALSE(job.seen().owner_alive);
  CHECK(job.seen().phase == static_cast<std::uint32_t>(Phase::leaving));
}

TEST_CASE("a held rank is refused, naming the holder; a left one is not") {
  const Job job;
  const Watch agent(job.host);
  Actor first(job.rank_role());
  REQUIRE(first.hear() == "claimed");
  Actor second(job.rank_role());
  const std::string answer = second.hear();
  CHECK(starts_with(answer, "refused: "));
  CHECK(
      answer.find("held by process " + std::to_string(first.pid())) !=
      std::string::npos);
  CHECK(WEXITSTATUS(second.wait()) == 3);
  CHECK(job.seen().owner_pid == static_cast<std::uint32_t>(first.pid()));
  first.say("release");
  REQUIRE(first.hear() == "released");
  Actor third(job.rank_role());
  CHECK(third.hear() == "claimed");
}

TEST_CASE("a dead holder's rank may be taken, and is whole again") {
  const Job job;
  const Watch agent(job.host);
  Actor first(job.rank_role());
  REQUIRE(first.hear() == "claimed");
  job.rank->block().rank_part.slots[0].lock = 5; // died in an update
  job.rank->block().rank_part.in_wait = 1;
  first.kill(SIGKILL);
  CHECK(WTERMSIG(first.wait()) == SIGKILL);
  CHECK_FALSE(job.seen().owner_alive);
  Actor second(job.rank_role());
  REQUIRE(second.hear() == "claimed");
  CHECK(job.seen().owner_pid == static_cast<std::uint32_t>(second.pid()));
  CHECK_FALSE(job.seen().torn);
  CHECK_FALSE(job.seen().in_wait);
}

TEST_CASE("a child made by fork neither holds nor releases the claim") {
  const Job job;
  const Watch agent(job.host);
  Actor rank(job.rank_role());
  REQUIRE(rank.hear() == "claimed");
  rank.say("fork");
  REQUIRE(rank.hear() == "forked");
  CHECK(job.seen().owner_alive);
  rank.say("child");
  REQUIRE(rank.hear() == "born");
  rank.kill(SIGKILL);
  while (job.seen().owner_alive) { // the living child does not hold it
    yield_thread();
  }
  Actor second(job.rank_role());
  CHECK(second.hear() == "claimed");
}

TEST_CASE("exec lets go of the claim") {
  const Job job;
  const Watch agent(job.host);
  Actor rank(job.rank_role());
  REQUIRE(rank.hear() == "claimed");
  rank.say("exec");
  while (job.seen().owner_alive) {
    yield_thread();
  }
  CHECK_FALSE(rank.has_ended());
  Actor second(job.rank_role());
  CHECK(second.hear() == "claimed");
}

TEST_CASE("nobody joins a job whose agent is gone") {
  const Job job;
  Actor rank(job.rank_role());
  const std::string answer = rank.hear();
  CHECK(starts_with(answer, "refused: "));
  CHECK(answer.find("is gone") != std::string::npos);
}

TEST_CASE("the agent's death reaches every rank, which ends") {
  const Job job;
  Actor agent({"agent", job.host_path});
  REQUIRE(agent.hear() == "watching");
  std::vector<std::unique_ptr<Actor>> ranks;
  for (std::uint32_t i = 0; i < 5; ++i) {
    const std::string path = job.scratch.path("rank" + std::to_string(i));
    RankMapping::create(path, i, 1);
    ranks.push_back(
        std::make_unique<Actor>(
            std::vector<std::string>{"rank", path, job.host_path}));
    REQUIRE(ranks.back()->hear() == "claimed");
  }
  SUBCASE("killed") {
    agent.kill(SIGKILL);
  }
  SUBCASE("killed after another rank left") {
    ranks[2]->say("release");
    REQUIRE(ranks[2]->hear() == "released");
    ranks.erase(ranks.begin() + 2);
    agent.kill(SIGKILL);
  }
  SUBCASE("let go of its life word") {
    agent.say("close");
  }
  for (const auto& rank : ranks) {
    CHECK(starts_with(rank->hear(), "lost: the agent died"));
    CHECK(WTERMSIG(rank->wait()) == SIGTERM);
  }
}

TEST_CASE("a silent agent's lease lapses") {
  const Job job(kSecond / 5);
  Actor agent({"agent", job.host_path});
  REQUIRE(agent.hear() == "watching");
  const std::uint64_t start = monotonic_ns();
  job.host->block().agent_beat_ns = start;
  Actor rank(job.rank_role());
  REQUIRE(rank.hear() == "claimed");
  CHECK(starts_with(rank.hear(), "lost: the lease lapsed"));
  CHECK(monotonic_ns() - start >= kSecond / 5);
  CHECK(WTERMSIG(rank.wait()) == SIGTERM);
}

TEST_CASE("a rank that was stopped past the lease hears the agent first") {
  const Job job(2 * kSecond);
  const Watch agent(job.host);
  Actor rank(job.rank_role());
  REQUIRE(rank.hear() == "claimed");
  rank.kill(SIGSTOP);
  // As if the whole job had slept, the agent included, for a long time.
  job.host->block().agent_beat_ns = monotonic_ns() - 100 * kSecond;
  rank.kill(SIGCONT);
  job.host->block().agent_beat_ns = monotonic_ns();
  rank.say("release");
  CHECK(rank.hear() == "released");
}

TEST_CASE(
    "a rank that ignores SIGTERM is killed after the grace, with its "
    "group") {
  const Job job(Lease::kForever, kSecond / 5);
  Actor agent({"agent", job.host_path});
  REQUIRE(agent.hear() == "watching");
  Actor rank(job.rank_role());
  REQUIRE(rank.hear() == "claimed");
  rank.say("ignore");
  REQUIRE(rank.hear() == "ignoring");
  rank.say("child");
  REQUIRE(rank.hear() == "born");
  SUBCASE("as it is") {}
  SUBCASE("in a collective") {
    rank.say("hold");
    REQUIRE(rank.hear() == "holding");
  }
  agent.kill(SIGKILL);
  CHECK(starts_with(rank.hear(), "lost: "));
  CHECK(rank.hear() == "(end of output)"); // the child is gone, too
  CHECK(WTERMSIG(rank.wait()) == SIGKILL);
}

TEST_CASE("releasing the claim does not save a process without control") {
  const Job job(Lease::kForever, kSecond / 5);
  Actor agent({"agent", job.host_path});
  REQUIRE(agent.hear() == "watching");
  Actor rank(job.rank_role());
  REQUIRE(rank.hear() == "claimed");
  rank.say("ignore");
  REQUIRE(rank.hear() == "ignoring");
  agent.kill(SIGKILL);
  CHECK(starts_with(rank.hear(), "lost: "));
  rank.say("release");
  CHECK(rank.hear() == "released");
  CHECK(WTERMSIG(rank.wait()) == SIGKILL);
}

TEST_CASE("SIGTERM waits a moment for a rank inside a collective") {
  const Job job;
  Actor agent({"agent", job.host_path});
  REQUIRE(agent.hear() == "watching");
  Actor rank(job.rank_role());
  REQUIRE(rank.hear() == "claimed");
  rank.say("hold");
  REQUIRE(rank.hear() == "holding");
  agent.kill(SIGKILL);
  CHECK(starts_with(rank.hear(), "lost: "));
  const std::uint64_t lost_at = monotonic_ns();
  CHECK(WTERMSIG(rank.wait()) == SIGTERM);
  CHECK(monotonic_ns() - lost_at > kSecond / 20);
}
