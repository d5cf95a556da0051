# Faults that users of similar systems met, tried on the device operators of all backends.
if(TESSERA_CUDA)
  tessera_gpu_test(gpu_field_reports_test SOURCES gpu/main.cpp gpu/field_reports_test.cpp
    LINK tessera_kernels_reference tessera_kernels_kokkos tessera_kernels_cuda fmt::fmt
    SUITES gpu_field_reports)
endif()
