# unity_by_folder(<target>): compiles the sources of each folder as one unit where FERRY_UNITY is on, because headers
# take longer to compile than the code does. A file with the property SKIP_UNITY_BUILD_INCLUSION is compiled alone. Call
# it after the last source of the target is added.
option(FERRY_UNITY "Compile the sources of a folder together: all of them sooner, one of them later" ON)

function(unity_by_folder target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(here ${target} SOURCE_DIR)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${here})
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    string(MAKE_C_IDENTIFIER ${folder} group)
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${FERRY_UNITY} UNITY_BUILD_MODE GROUP)
  # g++ takes a class of a .cc file, with a member of an unnamed namespace, for one of a header.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()
