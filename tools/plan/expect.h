// `ferry plan --expect`: a prediction beside what `ferry bench --json` measured.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/plan/options.h"

namespace ferry::tools {

// The JSON object at the end of the output of `ferry bench --json`. Throws
// std::invalid_argument.
nlohmann::json bench_object(const std::string& printed);

// The same of a file. An error names the file.
nlohmann::json bench_of(const std::string& file);

// The workload of a bench, from its options.
Workload workload_of_bench(const nlohmann::json& bench);

struct Expectation {
  std::string text;  // predicted, measured and error of dispatch, combine and pair
  bool within = true;
};

// `within`: the error of the pair's median that is allowed, 0.1 for 10 %. The strategy is the
// algorithm that the bench ran.
Expectation compare(const Plan& plan, const nlohmann::json& bench, double within);

// The reason why a prediction cannot be compared with the bench: the cores were in another place
// than during the calibration (bench/flag_time.h). Empty where the place is the same or not known.
std::string elsewhere_text(const Machine& machine, const nlohmann::json& bench);

}  // namespace ferry::tools
