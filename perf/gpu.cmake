# Tile rates on a GPU, timed with CUDA events: no library beyond the runtime.
add_executable(bench_gpu_tile bench_gpu_tile.cpp)
target_link_libraries(bench_gpu_tile PRIVATE tessera_kernels_cuda tessera_kernels_kokkos
  CUDA::cudart_static fmt::fmt)

# The compute steps of whole plans on one GPU.
add_executable(bench_gpu_pass bench_gpu_pass.cpp)
target_link_libraries(bench_gpu_pass PRIVATE tessera_attention tessera_kernels_cuda
  tessera_drivers_common tessera_io fmt::fmt nlohmann_json::nlohmann_json)

# All of them: what a GPU machine runs is compiled where there is none.
add_custom_target(gpu_benches)
add_dependencies(gpu_benches bench_gpu_tile bench_gpu_pass)
