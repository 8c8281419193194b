# _ext: the group as MLX sees it. Built and run against the same MLX: its C++ ABI
# is not stable. Included by bindings.cmake, which may have found Python already.

if(NOT TARGET Python::Module)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
endif()
if(NOT COMMAND nanobind_add_module)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)
  find_package(nanobind 3.1.0 EXACT CONFIG REQUIRED)
endif()

# Found without importing MLX: the build machine may be unable to load it.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
    "import importlib.util as u; print(*u.find_spec('mlx').submodule_search_locations)"
  OUTPUT_VARIABLE _mlx_package OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
file(STRINGS "${_mlx_package}/include/mlx/version.h" _mlx_version
  REGEX "#define MLX_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
string(REGEX REPLACE "[^0-9;]" "" _mlx_version "${_mlx_version}")
string(REPLACE ";" "." JLAUNCH_MLX_VERSION "${_mlx_version}")
find_package(MLX CONFIG REQUIRED
  PATHS "${_mlx_package}/share/cmake/MLX" NO_DEFAULT_PATH)
set_target_properties(mlx PROPERTIES SYSTEM ON)

# NB_DOMAIN mlx: shares type and exception tables with mlx.core, so that our
# GroupImpl is an mx.distributed.Group and our translator sees MLX's exceptions.
nanobind_add_module(_ext NB_STATIC NB_DOMAIN mlx NB_SUPPRESS_WARNINGS NOMINSIZE
  ${CMAKE_CURRENT_LIST_DIR}/../src/bindings.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../src/channels.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../src/delivery.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../src/membership.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../src/mlx_group.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../src/stack_mark.cpp)
target_link_libraries(_ext PRIVATE jlaunch_control jlaunch_core mlx jlaunch_warnings)

# In site-packages libmlx lies in the sibling package. In a checkout nothing does;
# there it is in the process already, since mlx.core is always imported first.
if(APPLE)
  set(_origin "@loader_path")
else()
  set(_origin "$ORIGIN")
endif()
set_target_properties(_ext PROPERTIES
  BUILD_WITH_INSTALL_RPATH ON
  INSTALL_RPATH "${_origin}/../../mlx/lib")

configure_file(${CMAKE_CURRENT_LIST_DIR}/../src/build.py.in _build.py @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_build.py DESTINATION ${JLAUNCH_INSTALL_DIR})
install(TARGETS _ext LIBRARY DESTINATION ${JLAUNCH_INSTALL_DIR})
