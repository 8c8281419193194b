# The backend's core: no MLX, no Python. jlaunch_core is linked into the Python extensions.

find_package(Threads REQUIRED)

add_library(jlaunch_core STATIC
  src/platform.cpp
)
target_include_directories(jlaunch_core PUBLIC src)
target_link_libraries(jlaunch_core
  PUBLIC Threads::Threads ${CMAKE_DL_LIBS}
  PRIVATE jlaunch_warnings)
