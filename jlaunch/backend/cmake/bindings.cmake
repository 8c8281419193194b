# What Python loads, and the shim that starts a rank. _control and the shim need no MLX.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT nanobind_DIR)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
    OUTPUT_STRIP_TRAILING_WHITESPACE
    OUTPUT_VARIABLE nanobind_DIR
    COMMAND_ERROR_IS_FATAL ANY)
endif()
find_package(nanobind 3.1 CONFIG REQUIRED)

# The process-side code that _control (agent) and _ext (rank) share.
add_library(jlaunch_control STATIC
  src/block_ops.cpp
  src/keeper.cpp
  src/lease.cpp
  src/mapping.cpp
  src/platform_watch.cpp
  src/robust_life.cpp
  src/watch.cpp
)
target_link_libraries(jlaunch_control PUBLIC jlaunch_core PRIVATE jlaunch_warnings)

# A domain of its own: nothing of it may meet the types of mlx.core.
nanobind_add_module(_control NB_STATIC NB_SUPPRESS_WARNINGS NB_DOMAIN jlaunch_control
  src/control_bindings.cpp)
target_link_libraries(_control PRIVATE jlaunch_control jlaunch_warnings)
install(TARGETS _control LIBRARY DESTINATION ${JLAUNCH_INSTALL_DIR} COMPONENT control)

# The first code of every rank: needs nothing but the C library.
add_executable(jlaunch-shim shim/main.cpp)
target_compile_options(jlaunch-shim PRIVATE -fno-exceptions -fno-rtti)
target_link_libraries(jlaunch-shim PRIVATE jlaunch_warnings)
if(NOT APPLE)
  target_link_options(jlaunch-shim PRIVATE LINKER:--as-needed) # drops libstdc++
endif()
install(TARGETS jlaunch-shim RUNTIME DESTINATION ${JLAUNCH_INSTALL_DIR}/bin COMPONENT control)

# The control side alone (an agent's half, its tests) builds where MLX is not installed.
option(JLAUNCH_EXT "Build the extension for MLX" ON)
if(JLAUNCH_EXT)
  include(cmake/ext.cmake OPTIONAL)
endif()
if(JLAUNCH_TESTS)
  include(cmake/control_tests.cmake OPTIONAL)
endif()
