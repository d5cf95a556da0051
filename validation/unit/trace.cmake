# trace: the file format and the analyses; cases are named after entries of field-reports.md.
tessera_unit_test(trace_chrome_test SOURCES unit/trace_chrome_test.cpp
  LINK tessera_trace nlohmann_json::nlohmann_json)
tessera_unit_test(trace_analysis_test SOURCES unit/trace_analysis_test.cpp LINK tessera_trace)
