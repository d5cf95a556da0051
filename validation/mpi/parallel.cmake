tessera_mpi_test(parallel_test SOURCES mpi/parallel_test.cpp LINK tessera_parallel fmt::fmt
  RANKS 1 2 3 4 8)

if(TARGET tessera_drivers_common)
  add_executable(parallel_faults mpi/parallel_faults.cpp)
  target_link_libraries(parallel_faults PRIVATE tessera_drivers_common)
  foreach(case ok agreed throw memory kill hang single stop)
    add_test(NAME mpi.parallel_faults.${case}
      COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/mpi/parallel_faults.sh $<TARGET_FILE:parallel_faults>
        ${PROJECT_SOURCE_DIR}/jobscripts/local/mpirun.sh ${case})
    set_tests_properties(mpi.parallel_faults.${case} PROPERTIES LABELS mpi PROCESSORS 2 TIMEOUT 60)
  endforeach()
endif()

if(TARGET tessera-comm)
  # The system's Python first: another one in PATH may be older or lack packages.
  find_program(TESSERA_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
  find_program(TESSERA_PYTHON python3 REQUIRED)
  foreach(n 1 2 3 4)
    add_test(NAME mpi.tessera_comm.np${n}
      COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/mpi/parallel_comm.sh $<TARGET_FILE:tessera-comm>
        ${PROJECT_SOURCE_DIR}/jobscripts/local/mpirun.sh ${n} ${TESSERA_PYTHON})
    set_tests_properties(mpi.tessera_comm.np${n} PROPERTIES LABELS mpi PROCESSORS 2 TIMEOUT 300)
  endforeach()
endif()
