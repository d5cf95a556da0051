if(TARGET tessera-attention)
  foreach(case kill hang)
    add_test(NAME cases.attention_rank_${case}
      COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/cases/rank_faults.sh
        $<TARGET_FILE:tessera-attention> ${PROJECT_SOURCE_DIR}/jobscripts/local/mpirun.sh ${case})
    set_tests_properties(cases.attention_rank_${case} PROPERTIES LABELS cases PROCESSORS 2
      TIMEOUT 120)
  endforeach()
endif()
