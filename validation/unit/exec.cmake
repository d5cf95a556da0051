# exec: the order in which a device run puts the units of a plan on its streams, and its lanes.
tessera_unit_test(exec_order_test SOURCES unit/exec_order_test.cpp
  LINK tessera_attention tessera_kernels_reference fmt::fmt)
target_include_directories(exec_order_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/mpi)
tessera_unit_test(exec_lanes_test SOURCES unit/exec_lanes_test.cpp
  LINK tessera_attention tessera_kernels_reference fmt::fmt)
target_include_directories(exec_lanes_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/mpi)
tessera_unit_test(exec_stores_test SOURCES unit/exec_stores_test.cpp LINK tessera_exec)
