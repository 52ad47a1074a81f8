// `ferry doctor --calibrate`: measures how long dispatch and combine take on this machine, and
// writes a machine that `ferry plan` reads.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ferry/plan.h"
#include "tools/calibrate/runs.h"

namespace ferry::tools {

// Fits the times per rank, per rank without a processor, per token and per byte, and the size of
// the caches. It minimizes the relative errors of pairs, dispatches and combines. One disturbed run
// changes the result little. No constant is negative. Throws std::invalid_argument if there are
// fewer samples than constants.
Machine::Host fit_host(const CopySamples& samples);

// Writes the results of calibrate() and calibrate_links() to a file. Throws std::runtime_error.
void write_machine(const std::string& file, const nlohmann::ordered_json& machine);

// Measures (runs.h), and writes the machine as JSON to the file. For each other place of the cores
// in which every shape was run at least half of `rounds` times, it also writes a machine. The name
// of that file has the time of a flag: "here-133ns.json". Returns a text about the result for
// people.
std::string calibrate(const std::string& file, int rounds);

}  // namespace ferry::tools
