tessera_mpi_test(attention_schemes_test SOURCES mpi/attention_schemes_test.cpp
  LINK tessera_attention tessera_kernels_reference fmt::fmt
  RANKS 1 2 3 4 6 8 9 12 16)
tessera_mpi_test(attention_field_reports_test SOURCES mpi/attention_field_reports_test.cpp
  LINK tessera_attention tessera_kernels_kokkos tessera_kernels_reference Kokkos::kokkos fmt::fmt
  RANKS 1 2 3 4 8)
tessera_mpi_test(attention_properties_test SOURCES mpi/attention_properties_test.cpp
  LINK tessera_attention tessera_kernels_kokkos tessera_kernels_reference Kokkos::kokkos fmt::fmt
  RANKS 1 2 4 8)
tessera_mpi_test(attention_inputs_test SOURCES mpi/attention_inputs_test.cpp
  LINK tessera_drivers_attention tessera_kernels_kokkos tessera_kernels_reference Kokkos::kokkos
    fmt::fmt
  RANKS 1 2 3 4)
