# Faults of messages between devices that users of similar systems met, on 1 to 4 ranks.
if(TESSERA_CUDA)
  tessera_gpu_test(gpu_messages_test SOURCES gpu/messages_test.cpp gpu/spin.cu
    LINK tessera_attention tessera_kernels_reference tessera_kernels_cuda CUDA::cudart_static
      fmt::fmt
    RANKS 1 2 4)
endif()
