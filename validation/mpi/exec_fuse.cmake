tessera_mpi_test(exec_fuse_test SOURCES mpi/exec_fuse_test.cpp
  LINK tessera_attention tessera_kernels_reference fmt::fmt
  RANKS 1 2 4)
