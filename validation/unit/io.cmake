tessera_unit_test(test_io LINK tessera_io SOURCES unit/io_file_system.cpp unit/io_selection.cpp)

# The system's Python first: it is the one that gets h5py from packages.
find_program(TESSERA_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(TESSERA_PYTHON NAMES python3 DOC "Python with h5py and numpy")
if(TESSERA_PYTHON)
  add_test(NAME unit.io.make_attention
    COMMAND ${TESSERA_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/unit/io_make_attention_test.py
      ${PROJECT_SOURCE_DIR}/inputs/data/make_attention.py)
  set_tests_properties(unit.io.make_attention PROPERTIES LABELS unit TIMEOUT 120
    SKIP_RETURN_CODE 77)
endif()
