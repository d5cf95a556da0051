if(TARGET tessera_drivers_common)
  tessera_unit_test(drivers_test SOURCES unit/drivers_test.cpp LINK tessera_drivers_common)
  target_compile_definitions(drivers_test PRIVATE
    TESSERA_MACHINES="${PROJECT_SOURCE_DIR}/inputs/machines")
endif()
