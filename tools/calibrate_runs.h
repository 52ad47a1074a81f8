// The runs of `ferry bench` behind a calibration. Called by calibrate.cc and calibrate_links.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ferry::tools {

// One run of `ferry bench` on one node.
struct CopySample {
  int ranks = 0;
  double rows = 0, bytes = 0;  // of all ranks
  double dispatch_us = 0, combine_us = 0;

  double pair_us() const { return dispatch_us + combine_us; }
};

struct CopySamples {
  std::vector<CopySample> samples;  // one for each shape
  double flag_ns = 0;               // from a core to the next; 0: one core
  int runs_apart = 0;               // that do not count, as the cores were moved
};

// Runs shapes of its own, which are none of those that README and docs show, in turns. The cores of
// a virtual machine may be moved from one cache to two and back (bench/flag_time.h); all runs that
// count had them where they were at the beginning. Throws std::runtime_error where that does not
// come back for a minute.
CopySamples measure_copies();

// The path of this program.
std::string own_program();

// What `<this program> <before> bench <words> --json` prints. Throws std::runtime_error when it
// cannot start, and std::invalid_argument when it prints no JSON.
nlohmann::json run_bench(const std::string& before, const std::string& words);

}  // namespace ferry::tools
