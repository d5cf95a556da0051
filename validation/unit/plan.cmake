# plan: builder, checker, counts, simulation and export of plans, without ranks.
tessera_unit_test(plan_builder_test SOURCES unit/plan_builder_test.cpp LINK tessera_plan)
tessera_unit_test(plan_check_test SOURCES unit/plan_check_test.cpp LINK tessera_plan)
tessera_unit_test(plan_faults_test SOURCES unit/plan_faults_test.cpp LINK tessera_plan)
tessera_unit_test(plan_order_test SOURCES unit/plan_order_test.cpp LINK tessera_plan)
tessera_unit_test(plan_simulate_test SOURCES unit/plan_simulate_test.cpp LINK tessera_plan)
tessera_unit_test(plan_export_test SOURCES unit/plan_export_test.cpp
  LINK tessera_plan nlohmann_json::nlohmann_json)
