# Tests of the control side: life words, watch, keeper, lease, control block.

enable_testing()
find_package(doctest REQUIRED)

add_executable(jlaunch_control_tests
  tests/actor.cpp
  tests/block_ops_test.cpp
  tests/control_main.cpp
  tests/delivery_test.cpp
  tests/keeper_test.cpp
  tests/lease_test.cpp
  tests/watch_test.cpp
  # Of the rank's side, but it knows neither MLX nor Python: tested under the sanitizers here.
  src/delivery.cpp
)
target_link_libraries(jlaunch_control_tests PRIVATE
  jlaunch_control jlaunch_warnings doctest::doctest)
add_test(NAME jlaunch_control_tests COMMAND jlaunch_control_tests)
