# Tests of the control side: life words, watch, keeper, lease, control block.

enable_testing()
find_package(doctest REQUIRED)

add_executable(jlaunch_control_tests
  tests/actor.cpp
  tests/block_ops_test.cpp
  tests/control_main.cpp
  tests/keeper_test.cpp
  tests/lease_test.cpp
  tests/watch_test.cpp
)
target_link_libraries(jlaunch_control_tests PRIVATE
  jlaunch_control jlaunch_warnings doctest::doctest)
add_test(NAME jlaunch_control_tests COMMAND jlaunch_control_tests)
