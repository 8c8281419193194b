#include <doctest/doctest.h>
#include "support.h"
using namespace jlaunch;
using namespace jlaunch::test;
TEST_CASE("smoke") {
  World world(2);
  CHECK(run_processes(world, [&](int rank) {
    auto group = world.join(rank);
    std::vector<float> in(1000, static_cast<float>(rank + 1)), out(1000);
    for (int i = 0; i < 1000; ++i) {
      group->all_sum(in.data(), out.data(), in.size(), Dtype::float32);
      RANK_CHECK(out[0] == 3 && out[999] == 3);
    }
    std::vector<float> big(3000000, static_cast<float>(rank + 1)), o2(3000000);
    group->all_sum(big.data(), o2.data(), big.size(), Dtype::float32);
    RANK_CHECK(o2[0] == 3 && o2[2999999] == 3);
    std::fprintf(stderr, "ok %d\n", rank);
  }));
}
