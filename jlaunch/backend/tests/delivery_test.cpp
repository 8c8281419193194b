#include "delivery.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace jlaunch {

namespace {

Failure lost(int rank, std::uint64_t group = 0) {
  Failure failure;
  failure.kind = Failure::Kind::peer_lost;
  failure.lost = {{rank, Reason::killed}};
  failure.group = group;
  failure.epoch = 1;
  failure.detail = "rank " + std::to_string(rank) + " was killed";
  return failure;
}

Failure stopping() {
  Failure failure;
  failure.kind = Failure::Kind::job_stopping;
  failure.epoch = 1;
  failure.detail = "the job is being stopped";
  return failure;
}

/** Counts the calls requested of the main thread. */
struct Requests {
  int made = 0;
  bool possible = true;
  Delivery delivery{[this] {
    made += possible ? 1 : 0;
    return possible;
  }};
};

} // namespace

TEST_CASE("a loss is taken once, by whichever channel comes first") {
  Requests requests;
  auto& delivery = requests.delivery;
  const auto text = delivery.failed(lost(2), delivery.origin(true));
  REQUIRE(text);
  CHECK(requests.made == 1);
  const auto found = delivery.find(*text);
  REQUIRE(found);
  CHECK(found->lost.front().rank == 2);

  SUBCASE("the translator") {
    delivery.delivered(*found);
    CHECK_FALSE(delivery.take());
  }
  SUBCASE("the pending call") {
    CHECK(delivery.take());
    CHECK_FALSE(delivery.take());
  }
}

TEST_CASE("the text names the loss among several, and other texts name none") {
  Requests requests;
  auto& delivery = requests.delivery;
  const auto first = delivery.failed(lost(1), delivery.origin(true));
  const auto second = delivery.failed(lost(3, 7), delivery.origin(true));
  REQUIRE(first);
  REQUIRE(second);
  CHECK(delivery.find(*first)->lost.front().rank == 1);
  CHECK(delivery.find(*second)->lost.front().rank == 3);
  for (const char* other :
       {"",
        "rank 1 was killed",
        " [jlaunch loss ",
        " [jlaunch loss x]",
        " [jlaunch loss 99]",
        " [jlaunch loss 0"}) {
    CHECK_FALSE(delivery.find(other));
  }
  CHECK(delivery.take()->lost.front().rank == 1);
  CHECK(delivery.take()->lost.front().rank == 3);
  CHECK_FALSE(delivery.take());
}

TEST_CASE("what was queued behind a delivered loss fails in silence") {
  Requests requests;
  auto& delivery = requests.delivery;
  const auto queued = delivery.origin(true);
  CHECK(delivery.failed(lost(2), queued));
  CHECK(delivery.take());
  CHECK_FALSE(delivery.failed(lost(2), queued));
  CHECK_FALSE(delivery.take());
  // A new collective fails aloud, and is delivered, again.
  CHECK(delivery.failed(lost(2), delivery.origin(true)));
  CHECK(requests.made == 2);
  CHECK(delivery.take());
}

TEST_CASE(
    "another thread hears every failure of its own; the main thread once") {
  Requests requests;
  auto& delivery = requests.delivery;
  const auto queued = delivery.origin(false);
  CHECK(delivery.failed(lost(2), queued));
  CHECK(delivery.take());
  CHECK(delivery.failed(lost(2), queued));
  CHECK(delivery.failed(lost(2), delivery.origin(false)));
  CHECK_FALSE(delivery.take());
  CHECK(requests.made == 1);
}

TEST_CASE("a call that could not be requested is requested again") {
  Requests requests;
  auto& delivery = requests.delivery;
  requests.possible = false;
  CHECK(delivery.failed(lost(2), delivery.origin(true)));
  requests.possible = true;
  CHECK(delivery.failed(lost(2), delivery.origin(true)));
  CHECK(requests.made == 1);
  CHECK(delivery.take());
}

TEST_CASE("deferring leaves the loss to the pending call and mutes retries") {
  Requests requests;
  auto& delivery = requests.delivery;
  delivery.defer(lost(2), [&] {
    CHECK_FALSE(delivery.failed(lost(2), delivery.origin(true)));
    return 0;
  });
  CHECK(requests.made == 1);
  CHECK(delivery.take());
  CHECK(delivery.failed(lost(2), delivery.origin(true)));
}

TEST_CASE("JobStopping is raised by the verdict or by SIGTERM, not by both") {
  Requests requests;
  auto& delivery = requests.delivery;
  const auto queued = delivery.origin(true);

  SUBCASE("the verdict first") {
    CHECK(delivery.failed(stopping(), queued));
    CHECK(delivery.take());
    CHECK_FALSE(delivery.claim_stop());
  }
  SUBCASE("SIGTERM first") {
    CHECK(delivery.claim_stop());
    CHECK_FALSE(delivery.failed(stopping(), queued));
    CHECK_FALSE(delivery.take());
    CHECK_FALSE(delivery.claim_stop());
  }
  SUBCASE("SIGTERM between the verdict and its delivery") {
    CHECK(delivery.failed(stopping(), queued));
    CHECK(delivery.claim_stop());
    CHECK_FALSE(delivery.take());
  }
  SUBCASE("a lost peer does not count") {
    CHECK(delivery.failed(lost(2), queued));
    CHECK(delivery.claim_stop());
    CHECK(delivery.take());
  }
}

TEST_CASE("failing tasks and the main thread race: every round is told once") {
  std::atomic<int> requested{0};
  Delivery delivery([&] {
    ++requested;
    return true;
  });
  for (int round = 0; round < 200; ++round) {
    const auto origin = delivery.origin(true);
    std::atomic<int> aloud{0};
    std::vector<std::thread> streams;
    for (int i = 0; i < 3; ++i) {
      streams.emplace_back(
          [&] { aloud += delivery.failed(lost(2), origin) ? 1 : 0; });
    }
    int told = 0;
    while (told == 0) {
      told += delivery.take() ? 1 : 0;
    }
    for (auto& stream : streams) {
      stream.join();
    }
    told += delivery.take() ? 1 : 0;
    CHECK(told == 1);
    CHECK(aloud >= 1);
  }
}

} // namespace jlaunch
