# The operator registry.
tessera_unit_test(ops_test SOURCES unit/ops_test.cpp LINK tessera_ops)
