# Tests of the control side: life words, watch, keeper, lease, control block.

enable_testing()
find_path(DOCTEST_INCLUDE_DIR doctest/doctest.h REQUIRED)

add_executable(jlaunch_control_tests
  tests/actor.cpp
  tests/block_ops_test.cpp
  tests/control_main.cpp
  tests/keeper_test.cpp
  tests/lease_test.cpp
  tests/watch_test.cpp
)
target_include_directories(jlaunch_control_tests SYSTEM PRIVATE ${DOCTEST_INCLUDE_DIR})
target_link_libraries(jlaunch_control_tests PRIVATE jlaunch_control jlaunch_warnings)
add_test(NAME control COMMAND jlaunch_control_tests)
