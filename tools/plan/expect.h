// `ferry plan --expect`: compares a prediction with the measurements of `ferry bench --json`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/plan/options.h"

namespace ferry::tools {

// Returns the JSON object at the end of the output of `ferry bench --json`. Throws
// std::invalid_argument.
nlohmann::json bench_object(const std::string& printed);

// Reads the same object from a file. An error names the file.
nlohmann::json bench_of(const std::string& file);

// Returns the workload of a bench, from its options.
Workload workload_of_bench(const nlohmann::json& bench);

struct Expectation {
  // The predicted time, the measured time and the error, for dispatch, combine and pair.
  std::string text;
  bool within = true;
};

// Compares the plan's prediction for the algorithm of the bench with its measurement. `within` is
// the allowed error of the pair's median, such as 0.1 for 10 %.
Expectation compare(const Plan& plan, const nlohmann::json& bench, double within);

// Explains why a prediction cannot be compared with the bench: in the calibration the cores were at
// other caches than in the bench, or they were moved during the bench (bench/flag_time.h). Empty if
// the cores were at the same caches, or if this is unknown.
std::string elsewhere_text(const Machine& machine, const nlohmann::json& bench);

}  // namespace ferry::tools
