# tessera_room(NAME SOURCES ... LINK ...): one static library per room, tessera_NAME. Its public
# links are the include table of src/README.md; validation/style checks the includes against it.
function(tessera_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE" ${ARGN})
  add_library(tessera_${name} STATIC ${ARG_SOURCES})
  target_include_directories(tessera_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(tessera_${name} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE})
endfunction()
