tessera_mpi_test(attention_schemes_test SOURCES mpi/attention_schemes_test.cpp
  LINK tessera_attention tessera_kernels_reference fmt::fmt
  RANKS 1 2 3 4 6 8 9 12 16)
