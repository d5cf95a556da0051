tessera_mpi_test(parallel_device_test SOURCES mpi/parallel_device_test.cpp LINK tessera_parallel
  fmt::fmt RANKS 1 2 3 4)
if(TESSERA_CUDA AND TESSERA_NCCL)
  tessera_mpi_test(parallel_nccl_test SOURCES mpi/parallel_nccl_test.cpp LINK tessera_parallel
    fmt::fmt RANKS 1 2 3 4)
  target_include_directories(parallel_nccl_test SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS}
    ${TESSERA_NCCL_INCLUDE_DIR})
endif()

if(TARGET tessera-comm)
  # tessera_comm_refuses(NAME TEXT ARGUMENTS...): the program ends with TEXT.
  function(tessera_comm_refuses name text)
    add_test(NAME mpi.tessera_comm.${name}
      COMMAND bash ${PROJECT_SOURCE_DIR}/jobscripts/local/mpirun.sh -n 2 $<TARGET_FILE:tessera-comm>
        ${ARGN})
    set_tests_properties(mpi.tessera_comm.${name} PROPERTIES LABELS mpi PROCESSORS 2 TIMEOUT 60
      PASS_REGULAR_EXPRESSION ${text})
  endfunction()
  tessera_comm_refuses(transport_of_host_ranks "add --device cuda" --transport peer)
  tessera_comm_refuses(unknown_transport "--transport: ib not in" --device cuda --transport ib)
  if(NOT TESSERA_CUDA)
    tessera_comm_refuses(no_cuda "this build has no CUDA" --device cuda)
  endif()
endif()
