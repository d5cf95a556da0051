# Tests of the CUDA kernels. Those that need a device skip visibly (exit code 77) without one.
if(TESSERA_CUDA)
  include_directories(${PROJECT_SOURCE_DIR})
  add_executable(gpu_mask_test ${PROJECT_SOURCE_DIR}/validation/gpu/mask_index_test.cpp)
  target_link_libraries(gpu_mask_test PRIVATE tessera_kernels_cuda GTest::gtest)
  add_test(NAME gpu.mask_index COMMAND gpu_mask_test)
  set_tests_properties(gpu.mask_index PROPERTIES LABELS "gpu;unit" TIMEOUT 300)

  add_executable(gpu_test ${PROJECT_SOURCE_DIR}/validation/gpu/main.cpp
    ${PROJECT_SOURCE_DIR}/validation/gpu/attention_test.cpp
    ${PROJECT_SOURCE_DIR}/validation/gpu/limits_test.cpp
    ${PROJECT_SOURCE_DIR}/validation/gpu/statistics_test.cpp
    ${PROJECT_SOURCE_DIR}/validation/gpu/memory_test.cpp)
  target_link_libraries(gpu_test PRIVATE tessera_kernels_reference tessera_kernels_cuda
    CUDA::cudart_static GTest::gtest fmt::fmt)
  foreach(suite gpu_attention gpu_limits gpu_statistics gpu_memory)
    add_test(NAME gpu.${suite} COMMAND gpu_test --gtest_filter=${suite}.*)
    set_tests_properties(gpu.${suite} PROPERTIES LABELS gpu TIMEOUT 600 SKIP_RETURN_CODE 77
      RUN_SERIAL ON)
  endforeach()
endif()
if(NOT TESSERA_CUDA)
  tessera_unit_test(gpu_none_test SOURCES gpu/no_cuda_test.cpp LINK tessera_memory)
endif()
