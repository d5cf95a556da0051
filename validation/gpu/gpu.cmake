# Tests of the CUDA kernels. Those that need a device skip visibly (exit code 77) without one.
if(TESSERA_CUDA)
  tessera_gpu_test(gpu_mask_test SOURCES gpu/mask_index_test.cpp LINK tessera_kernels_cuda
    SUITES gpu_mask_index)
  tessera_gpu_test(gpu_test SOURCES gpu/main.cpp gpu/attention_test.cpp gpu/masks_test.cpp
      gpu/limits_test.cpp gpu/statistics_test.cpp gpu/memory_test.cpp
    LINK tessera_kernels_reference tessera_kernels_kokkos tessera_kernels_cuda CUDA::cudart_static
      fmt::fmt
    SUITES gpu_attention gpu_cudnn gpu_masks gpu_limits gpu_statistics gpu_memory)
else()
  tessera_unit_test(gpu_none_test SOURCES gpu/no_cuda_test.cpp LINK tessera_memory)
endif()
