# The programs as users run them: one CTest test per script (see cases/support.py).
# "cases.<script>", labels cases and mpi.
if(TARGET tessera-attention AND TARGET tessera-plan AND TARGET tessera-comm AND TARGET tessera-info)
  execute_process(
    COMMAND bash -c ". ${PROJECT_SOURCE_DIR}/jobscripts/local/common.sh; find_python"
    OUTPUT_VARIABLE cases_python OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT cases_python)
    set(cases_python python3) # its tests skip themselves and say what is missing
  endif()
  foreach(script bad_deck bad_files stops good_runs exact_results plan_tool tools golden)
    add_test(NAME cases.${script}
      COMMAND ${cases_python} -B ${CMAKE_CURRENT_SOURCE_DIR}/cases/${script}.py
        ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
    set_tests_properties(cases.${script} PROPERTIES LABELS "cases;mpi" PROCESSORS 2 TIMEOUT 300
      SKIP_RETURN_CODE 77)
  endforeach()
  # Mostly the launcher's wait of a second after a failed rank: two at a time disturb nobody.
  set_tests_properties(cases.bad_deck cases.bad_files PROPERTIES PROCESSORS 1)
endif()
