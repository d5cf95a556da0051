# Style: the include table, rules for single files, headers that compile alone. Label unit.
# The system's Python first: another one in PATH may be older or lack packages.
find_program(TESSERA_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(TESSERA_PYTHON python3 REQUIRED)
set(style_folder ${CMAKE_CURRENT_SOURCE_DIR}/style)
foreach(check includes files)
  add_test(NAME unit.style.${check}
    COMMAND ${TESSERA_PYTHON} ${style_folder}/${check}.py ${PROJECT_SOURCE_DIR})
  add_test(NAME unit.style.${check}_finds_injected_violations
    COMMAND ${TESSERA_PYTHON} ${style_folder}/${check}.py ${PROJECT_SOURCE_DIR} --self-test)
  set_tests_properties(unit.style.${check} unit.style.${check}_finds_injected_violations
    PROPERTIES LABELS unit)
endforeach()
foreach(tool shellcheck clang-format)
  add_test(NAME unit.style.${tool}
    COMMAND bash ${style_folder}/tool.sh ${PROJECT_SOURCE_DIR} ${tool})
  set_tests_properties(unit.style.${tool} PROPERTIES LABELS unit SKIP_RETURN_CODE 77)
endforeach()

# One source per header that includes nothing else. Not part of a normal build: the test builds it,
# and the next time only what changed. Sanitizers see nothing new in it.
if(NOT TESSERA_SANITIZE)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/src/*.hpp ${PROJECT_SOURCE_DIR}/kernels/*.hpp
    ${PROJECT_SOURCE_DIR}/drivers/*.hpp)
  if(NOT TESSERA_CUDA)
    # They need headers of CUDA and NCCL.
    list(FILTER headers EXCLUDE REGEX
      "^kernels/cuda/|^src/memory/cuda_check.hpp|^src/parallel/nccl_api.hpp")
  endif()
  set(alone_sources "")
  foreach(header ${headers})
    string(REGEX REPLACE "^src/" "" include ${header})
    string(MAKE_C_IDENTIFIER ${include} id)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${id}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@include@\"\n" @ONLY)
    list(APPEND alone_sources ${source})
  endforeach()
  add_library(headers_alone OBJECT EXCLUDE_FROM_ALL ${alone_sources})
  foreach(target tessera_config tessera_io tessera_attention tessera_kernels_reference
      tessera_kernels_kokkos tessera_kernels_cuda tessera_drivers_common)
    if(TARGET ${target})
      target_link_libraries(headers_alone PRIVATE ${target})
    endif()
  endforeach()
  target_link_libraries(headers_alone PRIVATE Kokkos::kokkos tessera_hdf5)
  target_include_directories(headers_alone PRIVATE ${RANDOM123_INCLUDE_DIR})
  target_compile_options(headers_alone PRIVATE -O0)
  add_test(NAME unit.style.headers_compile_alone
    COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target headers_alone)
  set_tests_properties(unit.style.headers_compile_alone PROPERTIES LABELS unit PROCESSORS 2
    TIMEOUT 600)
endif()
