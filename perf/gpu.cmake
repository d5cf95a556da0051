# Tile rates on a GPU, timed with CUDA events: no library beyond the runtime.
add_executable(bench_gpu_tile ${PROJECT_SOURCE_DIR}/perf/bench_gpu_tile.cpp)
target_link_libraries(bench_gpu_tile PRIVATE tessera_kernels_cuda CUDA::cudart_static fmt::fmt)
