// `ferry plan --expect`: a prediction beside what `ferry bench --json` measured.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/plan/options.h"

namespace ferry::tools {

// The object in what `ferry bench --json` printed, behind its remarks. Throws
// std::invalid_argument.
nlohmann::json bench_object(const std::string& printed);

// What the options of a bench say the workload was.
Workload workload_of_bench(const nlohmann::json& bench);

struct Expectation {
  std::string text;  // predicted, measured and error of dispatch, combine and pair
  bool within = true;
};

// `within`: the error of the pair's median that is allowed, 0.1 for 10 %. The strategy is the
// algorithm that the bench ran.
Expectation compare(const Plan& plan, const nlohmann::json& bench, double within);

// Why a prediction says nothing of the bench: the cores were not where they were when the machine
// was calibrated (bench/flag_time.h). Empty where they were, and where that is not known.
std::string elsewhere_text(const Machine& machine, const nlohmann::json& bench);

}  // namespace ferry::tools
