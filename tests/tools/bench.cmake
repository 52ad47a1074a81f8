# Tests of `ferry bench`: its parts by GoogleTest, the command by a Python script.
find_package(CLI11 REQUIRED)
set(bench ${PROJECT_SOURCE_DIR}/tools/bench)
ferry_test(bench_test bench_check_test.cc bench_options_test.cc bench_routing_test.cc
           ${bench}/check.cc ${bench}/expert_load.cc ${bench}/options.cc ${bench}/plan.cc
           ${bench}/routing.cc ${PROJECT_SOURCE_DIR}/tools/shape_options.cc)
target_include_directories(bench_test PRIVATE ${PROJECT_SOURCE_DIR}/tools)
target_link_libraries(bench_test PRIVATE nlohmann_json::nlohmann_json CLI11::CLI11)
add_test(NAME bench_command_test
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/bench_command_test.py
                 $<TARGET_FILE:ferry_tool>)
set_tests_properties(bench_command_test PROPERTIES TIMEOUT ${FERRY_TEST_TIMEOUT})
