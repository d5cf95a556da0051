# Whole passes on GPU ranks, one device for each or all on one.
if(TESSERA_CUDA)
  tessera_gpu_test(gpu_schemes_test SOURCES gpu/schemes_test.cpp
    LINK tessera_attention tessera_kernels_reference tessera_kernels_cuda fmt::fmt
    RANKS 1 2 4 8 9 ALONE gpu_schemes_memory)
  tessera_gpu_test(gpu_delays_test SOURCES gpu/delays_test.cpp gpu/spin.cu
    LINK tessera_attention tessera_kernels_reference tessera_kernels_cuda CUDA::cudart_static
      fmt::fmt
    RANKS 1 2 4 8 9)
endif()
if(TESSERA_CUDA AND TARGET tessera-attention)
  add_test(NAME gpu.faults
    COMMAND ${cases_python} -B ${PROJECT_SOURCE_DIR}/validation/gpu/faults.py ${PROJECT_BINARY_DIR}
      ${PROJECT_SOURCE_DIR})
  set_tests_properties(gpu.faults PROPERTIES LABELS gpu TIMEOUT 600 SKIP_RETURN_CODE 77
    RUN_SERIAL ON)
endif()
