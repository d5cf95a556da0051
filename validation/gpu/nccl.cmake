# Messages between devices on 1 to 4 ranks, which may share devices.
if(TESSERA_CUDA)
  tessera_gpu_test(gpu_transport_test SOURCES gpu/nccl_test.cpp LINK tessera_parallel RANKS 1 2 3 4)
endif()
