# Every outside library, found once. What is missing is named all together, with its package.
# Libraries that are headers only, and the sources of GoogleTest, may also lie in TESSERA_DEPS_DIR
# (include/, googletest/), for machines where nothing can be installed.
set(tessera_missing "")
macro(tessera_find name package)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    list(APPEND tessera_missing "${name} (Debian: ${package})")
  endif()
endmacro()

# tessera_find_headers(NAME PACKAGE HEADER [DEFINITIONS ...]): target NAME::NAME, from the installed
# package or from TESSERA_DEPS_DIR/include.
macro(tessera_find_headers name package header)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND AND EXISTS ${TESSERA_DEPS_DIR}/include/${header})
    add_library(tessera_${name}_headers INTERFACE)
    target_include_directories(tessera_${name}_headers SYSTEM INTERFACE ${TESSERA_DEPS_DIR}/include)
    target_compile_definitions(tessera_${name}_headers INTERFACE ${ARGN})
    add_library(${name}::${name} ALIAS tessera_${name}_headers)
  elseif(NOT ${name}_FOUND)
    list(APPEND tessera_missing "${name} (Debian: ${package})")
  endif()
endmacro()

tessera_find(MPI libopenmpi-dev COMPONENTS C)
set(HDF5_PREFER_PARALLEL ON)
tessera_find(HDF5 libhdf5-openmpi-dev COMPONENTS C)
tessera_find_headers(fmt libfmt-dev fmt/format.h FMT_HEADER_ONLY)
tessera_find_headers(spdlog libspdlog-dev spdlog/spdlog.h SPDLOG_FMT_EXTERNAL)
tessera_find_headers(nlohmann_json nlohmann-json3-dev nlohmann/json.hpp)
tessera_find_headers(CLI11 libcli11-dev CLI/CLI.hpp)
tessera_find_headers(toml11 libtoml11-dev toml.hpp)
find_path(RANDOM123_INCLUDE_DIR Random123/philox.h PATHS ${TESSERA_DEPS_DIR}/include)
if(NOT RANDOM123_INCLUDE_DIR)
  list(APPEND tessera_missing "Random123 (Debian: librandom123-dev)")
endif()
if(TESSERA_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND AND EXISTS ${TESSERA_DEPS_DIR}/googletest/CMakeLists.txt)
    set(GOOGLETEST_VERSION 1.12.1) # its own build file wants to be told
    add_subdirectory(${TESSERA_DEPS_DIR}/googletest googletest EXCLUDE_FROM_ALL)
  elseif(NOT GTest_FOUND)
    list(APPEND tessera_missing "GTest (Debian: libgtest-dev)")
  endif()
endif()
if(tessera_missing)
  list(JOIN tessera_missing "\n  " text)
  message(FATAL_ERROR "Tessera needs what was not found here:\n  ${text}\n"
    "Install the packages, load the modules, or point CMAKE_PREFIX_PATH at their prefixes.")
endif()

# What a build can do without. Each message names what is missing and what that costs.
if(TESSERA_BENCHMARKS)
  find_package(benchmark QUIET)
  if(NOT benchmark_FOUND)
    message(STATUS "Without Google Benchmark (Debian: libbenchmark-dev): no bench_tile and "
      "bench_executor")
  endif()
endif()

find_package(Kokkos QUIET)
# The serial OpenBLAS is looked for first: a rank owns one core, and a threaded BLAS inside it
# oversubscribes the node.
find_library(TESSERA_CBLAS_LIBRARY NAMES openblas cblas blas
  HINTS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-serial ENV OPENBLAS_ROOT
  PATH_SUFFIXES lib lib64)
find_path(TESSERA_CBLAS_INCLUDE_DIR cblas.h
  HINTS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-serial ENV OPENBLAS_ROOT
  PATH_SUFFIXES include openblas)
if(Kokkos_FOUND AND TESSERA_CBLAS_LIBRARY AND TESSERA_CBLAS_INCLUDE_DIR)
  set(TESSERA_KOKKOS ON)
  message(STATUS "CBLAS: ${TESSERA_CBLAS_LIBRARY}")
  add_library(tessera_cblas INTERFACE)
  target_include_directories(tessera_cblas SYSTEM INTERFACE ${TESSERA_CBLAS_INCLUDE_DIR})
  target_link_libraries(tessera_cblas INTERFACE ${TESSERA_CBLAS_LIBRARY})
  # Debian's Kokkos target names an include folder that does not exist; the variable is right.
  if(Kokkos_DIR MATCHES "^/usr/lib" AND EXISTS /usr/include/trilinos/Kokkos_Core.hpp)
    set_target_properties(Kokkos::kokkos PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES /usr/include/trilinos)
  endif()
  if(Kokkos_ENABLE_CUDA)
    # Kokkos puts its compiler in front of what includes it: nothing else may stand there. One CUDA
    # runtime for all: the one that our kernels are registered with.
    set(CMAKE_CXX_COMPILER_LAUNCHER "")
    set_target_properties(Kokkos::CUDA PROPERTIES
      INTERFACE_LINK_LIBRARIES "CUDA::cuda_driver;CUDA::cudart_static")
    set(TESSERA_KOKKOS_CUDA ${TESSERA_CUDA})
    if(TESSERA_KOKKOS_CUDA)
      set_property(TARGET Kokkos::kokkos APPEND PROPERTY
        INTERFACE_COMPILE_DEFINITIONS TESSERA_KOKKOS_CUDA)
    endif()
  endif()
else()
  set(TESSERA_KOKKOS OFF)
  message(STATUS "Without Kokkos and CBLAS (Kokkos: ${Kokkos_DIR}; library: "
    "${TESSERA_CBLAS_LIBRARY}; cblas.h: ${TESSERA_CBLAS_INCLUDE_DIR}; Debian: "
    "libtrilinos-kokkos-dev libopenblas-serial-dev): no fast operators on the host, only the plain "
    "reference; no tests and benchmarks of them")
endif()

add_library(tessera_hdf5 INTERFACE)
target_include_directories(tessera_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(tessera_hdf5 INTERFACE ${HDF5_LIBRARIES})
target_compile_definitions(tessera_hdf5 INTERFACE ${HDF5_DEFINITIONS})
if(HDF5_IS_PARALLEL)
  target_link_libraries(tessera_hdf5 INTERFACE MPI::MPI_C)
else()
  message(STATUS "Without parallel HDF5 (Debian: libhdf5-openmpi-dev): ranks write in turn")
endif()
