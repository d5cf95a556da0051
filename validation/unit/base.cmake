tessera_unit_test(test_base LINK tessera_base
  SOURCES unit/base_log.cpp unit/base_suggest.cpp unit/base_units.cpp unit/base_version.cpp)
