# Operators of the host backends: against each other, finite differences and hand-made values.
tessera_unit_test(kernels_test
  SOURCES unit/kernels_main.cpp unit/kernels_property_test.cpp unit/kernels_gradient_test.cpp
          unit/kernels_field_reports_test.cpp unit/kernels_limits_test.cpp
          unit/kernels_tensors_test.cpp unit/kernels_parts_test.cpp
          unit/kernels_rows_test.cpp
  LINK tessera_kernels_reference tessera_kernels_kokkos Kokkos::kokkos)
target_compile_options(kernels_test PRIVATE -fopenmp-simd) # for exp2.hpp, which a test includes
