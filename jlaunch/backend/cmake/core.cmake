# The backend's core (no MLX, no Python), the soft provider, and the C++ tests.

find_package(Threads REQUIRED)

add_library(jlaunch_core STATIC
  src/platform.cpp
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
