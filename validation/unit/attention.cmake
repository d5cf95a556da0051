tessera_unit_test(attention_test
  SOURCES unit/attention_mask_test.cpp unit/attention_layout_test.cpp
          unit/attention_lockstep_test.cpp unit/attention_scheme_test.cpp
          unit/attention_faults_test.cpp unit/attention_self_check_test.cpp
          unit/attention_ranges_test.cpp
  LINK tessera_attention tessera_kernels_reference fmt::fmt)
target_include_directories(attention_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/mpi)
