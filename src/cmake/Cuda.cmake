# CUDA, when asked for: the language, the one list of architectures, what is missing. CMake 3.25
# does not know how to ask nvcc 13 for C++20, so it is told.
if(NOT TESSERA_CUDA)
  set(TESSERA_NCCL OFF)
  return()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # 90a: matrix products of whole warpgroups and register hand-over exist in this one only.
  set(CMAKE_CUDA_ARCHITECTURES 90a CACHE STRING "GPU architectures of all CUDA kernels")
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin REQUIRED)
endif()
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
foreach(kind STANDARD EXTENSION)
  if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
  endif()
endforeach()
message(STATUS "CUDA ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")

# Where Python packages keep the headers of cuDNN, its C++ frontend and NCCL.
find_program(TESSERA_CUDA_PYTHON python3)
set(tessera_python_roots "")
if(TESSERA_CUDA_PYTHON)
  execute_process(COMMAND ${TESSERA_CUDA_PYTHON} -c [[
from importlib.util import find_spec
from pathlib import Path
for name in ("nvidia.cudnn", "cudnn", "nvidia.nccl"):
    try:
        spec = find_spec(name)
    except ImportError:
        continue
    for folder in spec.submodule_search_locations if spec else []:
        print(folder, Path(folder).parent, sep=";")
]]
    OUTPUT_VARIABLE tessera_python_roots OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  string(REPLACE "\n" ";" tessera_python_roots "${tessera_python_roots}")
endif()

# cuDNN: its headers and those of its C++ frontend; the library itself is opened at run time. Both
# are looked for in the usual places, in CUDNN_FRONTEND_ROOT, in TESSERA_DEPS_DIR and in the Python
# packages nvidia-cudnn and nvidia-cudnn-frontend.
set(tessera_cudnn_hints ${CUDNN_FRONTEND_ROOT} $ENV{CUDNN_FRONTEND_ROOT} ${tessera_python_roots}
  ${CUDAToolkit_INCLUDE_DIRS} ${TESSERA_DEPS_DIR}/cudnn)
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${tessera_cudnn_hints} PATH_SUFFIXES include)
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${tessera_cudnn_hints}
  PATH_SUFFIXES include)
if(CUDNN_INCLUDE_DIR AND CUDNN_FRONTEND_INCLUDE_DIR)
  set(TESSERA_CUDNN_FRONTEND ON)
  add_library(tessera_cudnn INTERFACE)
  target_include_directories(tessera_cudnn SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE_DIR}
    ${CUDNN_INCLUDE_DIR})
  target_compile_definitions(tessera_cudnn INTERFACE NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
    CUDNN_FRONTEND_SKIP_JSON_LIB)
  target_link_libraries(tessera_cudnn INTERFACE ${CMAKE_DL_LIBS})
  message(STATUS "cuDNN frontend: ${CUDNN_FRONTEND_INCLUDE_DIR}")
else()
  set(TESSERA_CUDNN_FRONTEND OFF)
  message(STATUS "Without cuDNN headers (cudnn.h: ${CUDNN_INCLUDE_DIR}; cudnn_frontend.h: "
    "${CUDNN_FRONTEND_INCLUDE_DIR}; Python packages nvidia-cudnn-cu13, nvidia-cudnn-frontend): "
    "attention runs on our own kernels only")
endif()

# NCCL: its header in the toolkit, the system or the Python package nvidia-nccl.
find_path(TESSERA_NCCL_INCLUDE_DIR nccl.h
  HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_ROOT ${tessera_python_roots} PATH_SUFFIXES include)
if(TESSERA_NCCL_INCLUDE_DIR)
  set(TESSERA_NCCL ON)
  message(STATUS "NCCL: ${TESSERA_NCCL_INCLUDE_DIR}")
else()
  set(TESSERA_NCCL OFF)
  message(STATUS "Without nccl.h (Debian: libnccl-dev; Python package nvidia-nccl-cu13; NCCL_ROOT): "
    "devices exchange through copy engines or host memory")
endif()
