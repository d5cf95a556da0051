# The report of a GPU run, on made-up numbers; needs no GPU.
if(TESSERA_PYTHON)
  add_test(NAME unit.perf.gpu_report
    COMMAND ${TESSERA_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/unit/perf_report_test.py
      ${PROJECT_SOURCE_DIR}/perf/gpu_report.py)
  set_tests_properties(unit.perf.gpu_report PROPERTIES LABELS unit TIMEOUT 120)
endif()
