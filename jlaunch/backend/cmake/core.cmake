# The backend's core (no MLX, no Python), the soft provider, and the C++ tests.

find_package(Threads REQUIRED)

if("thread" IN_LIST JLAUNCH_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC warns that its thread sanitizer does not follow fences. Ours order atomics only, no plain data.
  target_compile_options(jlaunch_warnings INTERFACE -Wno-tsan)
endif()

add_library(jlaunch_core STATIC
  src/block_writer.cpp
  src/connection.cpp
  src/dtype.cpp
  src/error.cpp
  src/fabric.cpp
  src/group.cpp
  src/mesh.cpp
  src/platform.cpp
  src/progress.cpp
  src/reduce.cpp
  src/ring.cpp
  src/supervision.cpp
  src/verbs.cpp
  src/verdict.cpp
)
target_include_directories(jlaunch_core PUBLIC src)
target_link_libraries(jlaunch_core
  PUBLIC Threads::Threads ${CMAKE_DL_LIBS}
  PRIVATE jlaunch_warnings)

# Opened at run time by path, like the system's library: nothing links to it.
add_library(jlaunch_soft SHARED
  soft/mapping.cpp
  soft/memory.cpp
  soft/node.cpp
  soft/provider.cpp
  soft/queue.cpp
  src/platform.cpp
)
target_include_directories(jlaunch_soft PRIVATE src soft)
target_link_libraries(jlaunch_soft PRIVATE Threads::Threads jlaunch_warnings)
install(TARGETS jlaunch_soft LIBRARY DESTINATION ${JLAUNCH_INSTALL_DIR})

if(JLAUNCH_TESTS)
  enable_testing()
  find_package(doctest REQUIRED)
  add_executable(jlaunch_core_tests
    tests/calls_test.cpp
    tests/collectives_test.cpp
    tests/fake_verbs.cpp
    tests/control_block_test.cpp
    tests/faults_test.cpp
    tests/main.cpp
    tests/progress_test.cpp
    tests/reduce_test.cpp
    tests/ring_test.cpp
    tests/soft_provider_test.cpp
    tests/support.cpp
    soft/mapping.cpp
  )
  # The layout is held against rdma-core's header where that is installed.
  include(CheckIncludeFileCXX)
  check_include_file_cxx(infiniband/verbs.h JLAUNCH_HAS_VERBS_HEADER)
  if(JLAUNCH_HAS_VERBS_HEADER)
    target_sources(jlaunch_core_tests PRIVATE tests/verbs_abi_test.cpp)
  endif()
  target_include_directories(jlaunch_core_tests PRIVATE soft)
  target_compile_definitions(jlaunch_core_tests PRIVATE
    DOCTEST_CONFIG_SUPER_FAST_ASSERTS
    JLAUNCH_SOFT_LIBRARY="$<TARGET_FILE:jlaunch_soft>")
  target_link_libraries(jlaunch_core_tests PRIVATE jlaunch_core jlaunch_warnings doctest::doctest)
  add_dependencies(jlaunch_core_tests jlaunch_soft)
  add_test(NAME jlaunch_core_tests COMMAND jlaunch_core_tests)

  # Prints both sides of one run; for people, not for ctest.
  add_executable(bench_deadline tests/bench_deadline.cpp tests/support.cpp)
  target_compile_definitions(bench_deadline PRIVATE
    JLAUNCH_SOFT_LIBRARY="$<TARGET_FILE:jlaunch_soft>")
  target_link_libraries(bench_deadline PRIVATE jlaunch_core jlaunch_warnings)
  add_dependencies(bench_deadline jlaunch_soft)
endif()
