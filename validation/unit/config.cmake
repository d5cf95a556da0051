tessera_unit_test(test_config LINK tessera_config
  SOURCES unit/config_errors.cpp unit/config_load.cpp unit/config_print.cpp)
