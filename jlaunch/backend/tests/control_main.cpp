#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "actor.h"

/** The tests; or, started by one of them, a process that plays a role. */
int main(int argc, char** argv) {
  if (const auto code = jlaunch::test::run_role(argc, argv)) {
    return *code;
  }
  return doctest::Context(argc, argv).run();
}
