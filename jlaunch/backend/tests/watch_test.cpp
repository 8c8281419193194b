#include "watch.h"

#include <algorithm>
#include <csignal>
#include <stdexcept>
#include <string>

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "actor.h"
#include "block_ops.h"
#include "lease.h"
#include "platform.h"
#include "robust_life.h"

using namespace jlaunch;
using jlaunch::test::Actor;
using jlaunch::test::kPatience;
using jlaunch::test::Scratch;

namespace {

using Keys = std::vector<std::int64_t>;

/** An agent's side: its block, its watch, and its ranks' blocks by number. */
struct Host {
  Scratch scratch;
  std::string path = scratch.path("host");
  std::shared_ptr<HostMapping> block =
      HostMapping::create(path, Lease::kForever, Lease::kForever);
  Watch watch;

  explicit Host(Watch::Sleep sleep) : watch(block, sleep) {}

  std::string rank_path(std::uint32_t rank) const {
    return scratch.path("rank" + std::to_string(rank));
  }

  std::shared_ptr<RankMapping> create(std::uint32_t rank) const {
    return RankMapping::create(rank_path(rank), rank, 1);
  }

  void add(std::uint32_t rank) {
    watch.add(rank, create(rank));
  }

  std::vector<std::string> rank_role(std::uint32_t rank) const {
    return {"rank", rank_path(rank), path};
  }

  /** Collects deaths until there are so many. */
  Keys deaths(std::size_t count) {
    Keys keys;
    while (keys.size() < count) {
      pollfd ready{watch.fd(), POLLIN, 0};
      const auto patience = std::chrono::milliseconds(kPatience).count();
      REQUIRE(::poll(&ready, 1, static_cast<int>(patience)) == 1);
      const Keys died = watch.take().died;
      keys.insert(keys.end(), died.begin(), died.end());
    }
    return keys;
  }

  /** Waits for the doorbell; the deaths told meanwhile. Being woken for news
   *  that were taken a moment before is no fault. */
  Keys died_before_a_ring() {
    Keys keys;
    for (bool rang = false; !rang;) {
      pollfd ready{watch.fd(), POLLIN, 0};
      const auto patience = std::chrono::milliseconds(kPatience).count();
      REQUIRE(::poll(&ready, 1, static_cast<int>(patience)) == 1);
      const Watch::News news = watch.take();
      keys.insert(keys.end(), news.died.begin(), news.died.end());
      rang = news.rang;
    }
    return keys;
  }

  /** Takes what is there now; nothing if there are no news. */
  Watch::News take_now() {
    return watch.take();
  }
};

template <class Test>
void in_both_ways(Test test) {
  SUBCASE("one thread for many words") {
    REQUIRE(has_futex_wait_any());
    test(Watch::Sleep::best);
  }
  SUBCASE("a vigil for each claim") {
    test(Watch::Sleep::vigils);
  }
}

} // namespace

TEST_CASE("a death is told before the victim's memory is freed") {
  in_both_ways([](Watch::Sleep sleep) {
    Host host(sleep);
    host.add(0);
    auto role = host.rank_role(0);
    role.push_back("1024");
    Actor rank(role);
    REQUIRE(rank.hear() == "claimed");
    const int pidfd =
        static_cast<int>(::syscall(SYS_pidfd_open, rank.pid(), 0));
    REQUIRE(pidfd >= 0);
    host.take_now();
    rank.kill(SIGKILL);
    pollfd ready[] = {{host.watch.fd(), POLLIN, 0}, {pidfd, POLLIN, 0}};
    const auto patience = std::chrono::milliseconds(kPatience).count();
    REQUIRE(::poll(ready, 2, static_cast<int>(patience)) == 1);
    CHECK(ready[0].revents == POLLIN);
    CHECK(host.watch.take().died == Keys{0});
    ::close(pidfd);
    CHECK(WTERMSIG(rank.wait()) == SIGKILL);
  });
}

TEST_CASE("each claim's death is told once, under its key") {
  in_both_ways([](Watch::Sleep sleep) {
    Host host(sleep);
    host.add(5);
    host.add(6);
    Actor other(host.rank_role(6));
    REQUIRE(other.hear() == "claimed");
    for (int claim = 0; claim < 3; ++claim) {
      Actor rank(host.rank_role(5));
      REQUIRE(rank.hear() == "claimed");
      rank.kill(SIGKILL);
      CHECK(host.deaths(1) == Keys{5});
      rank.wait();
      CHECK(host.take_now().died.empty());
    }
    other.kill(SIGKILL);
    CHECK(host.deaths(1) == Keys{6});
  });
}

TEST_CASE(
    "a death that the doorbell tells first is told once, and so is the "
    "next") {
  in_both_ways([](Watch::Sleep sleep) {
    Host host(sleep);
    host.add(5);
    for (int claim = 0; claim < 10; ++claim) {
      Actor rank(host.rank_role(5));
      REQUIRE(rank.hear() == "claimed");
      rank.kill(SIGKILL);
      rank.wait();
      // Two of the watch's threads see it now, in either order.
      ring_doorbell(host.block->block());
      CHECK(host.deaths(1) == Keys{5});
      CHECK(host.take_now().died.empty());
    }
  });
}

TEST_CASE("a stopped rank that is killed is told, too") {
  in_both_ways([](Watch::Sleep sleep) {
    Host host(sleep);
    host.add(1);
    Actor rank(host.rank_role(1));
    REQUIRE(rank.hear() == "claimed");
    rank.kill(SIGSTOP);
    rank.kill(SIGKILL);
    CHECK(host.deaths(1) == Keys{1});
  });
}

TEST_CASE("a claim and a clean leave ring the doorbell and are no death") {
  in_both_ways([](Watch::Sleep sleep) {
    Host host(sleep);
    host.add(1);
    host.take_now();
    Actor rank(host.rank_role(1));
    REQUIRE(rank.hear() == "claimed");
    CHECK(host.died_before_a_ring().empty());
    rank.say("release");
    REQUIRE(rank.hear() == "released");
    CHECK(host.died_before_a_ring().empty());
    rank.kill(SIGKILL);
    rank.wait();
    CHECK(host.take_now().died.empty());
  });
}

TEST_CASE("a claim that died before it was watched is told") {
  in_both_ways([](Watch::Sleep sleep) {
    Host host(sleep);
    const auto block = host.create(3);
    Actor rank(host.rank_role(3));
    REQUIRE(rank.hear() == "claimed");
    rank.kill(SIGKILL);
    rank.wait();
    host.watch.add(3, block);
    CHECK(host.deaths(1) == Keys{3});
  });
}

TEST_CASE("a key that was removed is not told, and may be used again") {
  in_both_ways([](Watch::Sleep sleep) {
    Host host(sleep);
    const auto block = host.create(3);
    host.watch.add(3, block);
    CHECK_THROWS_AS(host.watch.add(3, block), const std::invalid_argument&);
    Actor rank(host.rank_role(3));
    REQUIRE(rank.hear() == "claimed");
    host.watch.remove(3);
    host.watch.remove(4711); // unknown: nothing
    rank.kill(SIGKILL);
    rank.wait();
    CHECK(host.take_now().died.empty());
    host.watch.add(3, block);
    CHECK(host.deaths(1) == Keys{3});
  });
}

TEST_CASE("more ranks than one call can wait for") {
  in_both_ways([](Watch::Sleep sleep) {
    constexpr std::uint32_t count = 300; // three threads
    Host host(sleep);
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      host.add(rank);
    }
    Actor last(host.rank_role(count - 1));
    REQUIRE(last.hear() == "claimed");
    Actor many(
        {"many",
         host.scratch.path("rank"),
         host.path,
         std::to_string(count - 1)});
    REQUIRE(many.hear() == "claimed");
    many.kill(SIGKILL);
    Keys died = host.deaths(count - 1);
    std::ranges::sort(died);
    REQUIRE(died.size() == count - 1);
    for (std::uint32_t rank = 0; rank < count - 1; ++rank) {
      REQUIRE(died[rank] == rank);
    }
    last.kill(SIGKILL);
    CHECK(host.deaths(1) == Keys{count - 1});
    for (std::uint32_t rank = 0; rank < count; rank += 2) {
      host.watch.remove(rank);
    }
  });
}

TEST_CASE("the watch holds the agent's life word, once") {
  in_both_ways([](Watch::Sleep sleep) {
    Host host(sleep);
    const auto& life = host.block->block().agent_life;
    CHECK(life_of(life) == Life::held);
    CHECK_THROWS_AS(Watch(host.block, sleep), const std::runtime_error&);
    CHECK(life_of(life) == Life::held);
    host.watch.close();
    CHECK(life_of(life) == Life::free);
    CHECK_THROWS_AS(host.watch.add(1, host.create(1)), const std::logic_error&);
    const Watch again(host.block, sleep);
    CHECK(life_of(life) == Life::held);
  });
}

TEST_CASE("an agent that is killed leaves its life word marked") {
  const Scratch scratch;
  const auto block = HostMapping::create(scratch.path("host"), 0, 0);
  Actor agent({"agent", scratch.path("host")});
  REQUIRE(agent.hear() == "watching");
  agent.kill(SIGKILL);
  agent.wait();
  CHECK(life_of(block->block().agent_life) == Life::died);
}
