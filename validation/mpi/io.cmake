foreach(part slabs output faults)
  tessera_mpi_test(io_${part}_test SOURCES mpi/io_${part}_test.cpp LINK tessera_io
    RANKS 1 2 3 4 8)
endforeach()

add_executable(io_save_loop mpi/io_save_loop.cpp)
target_link_libraries(io_save_loop PRIVATE tessera_io)
add_test(NAME mpi.io_kill.np2
  COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/mpi/io_kill.sh $<TARGET_FILE:io_save_loop>
    ${PROJECT_SOURCE_DIR}/jobscripts/local/mpirun.sh)
set_tests_properties(mpi.io_kill.np2 PROPERTIES LABELS mpi PROCESSORS 2 TIMEOUT 120)
