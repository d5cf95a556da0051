tessera_unit_test(test_memory LINK tessera_memory SOURCES unit/memory_buffer.cpp)
