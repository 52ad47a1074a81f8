// `ferry doctor --calibrate`: what a dispatch and a combine take on this machine, as a machine that
// `ferry plan` reads. Called by doctor.cc.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ferry/plan.h"

namespace ferry::tools {

// One run of `ferry bench` on one node.
struct CopySample {
  int ranks = 0;
  double rows = 0, bytes = 0;  // of all ranks
  double us = 0;
};

// What ranks, rows and bytes take (Machine::Copying) with the least squares of relative errors; no
// term is negative. Throws std::invalid_argument for fewer samples than terms.
Machine::Copying fit_copying(const std::vector<CopySample>& samples,
                             const std::array<double, 2>& caches_mb);

// The path of this program.
std::string own_program();

// What `<this program> <before> bench <words> --json` prints. Throws std::runtime_error when it
// cannot start, and std::invalid_argument when it prints no JSON.
nlohmann::json run_bench(const std::string& before, const std::string& words);

// Writes what calibrate() and calibrate_links() found. Throws std::runtime_error.
void write_machine(const std::string& file, const nlohmann::ordered_json& machine);

// Runs benches of its own shapes, which are none of those that README and docs show; writes the
// machine as JSON to the file. Returns what was found, for people.
std::string calibrate(const std::string& file);

}  // namespace ferry::tools
