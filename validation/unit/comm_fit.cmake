tessera_unit_test(comm_fit_test SOURCES unit/comm_fit_test.cpp ${PROJECT_SOURCE_DIR}/drivers/comm/fit.cpp
  LINK tessera_base fmt::fmt)
