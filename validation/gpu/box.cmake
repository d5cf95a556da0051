# Attention calls cut to the visible part of a tile; host code, runs without a device.
if(TESSERA_CUDA)
  tessera_gpu_test(gpu_box_test SOURCES gpu/box_test.cpp
    LINK tessera_kernels_reference tessera_kernels_cuda SUITES gpu_box)
endif()
