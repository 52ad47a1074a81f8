// `ferry doctor --calibrate`: what a dispatch and a combine take on this machine, as a machine that
// `ferry plan` reads.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ferry/plan.h"
#include "tools/calibrate/runs.h"

namespace ferry::tools {

// Fits the times per rank, per rank without a processor, per token and per byte, and the size of
// the caches, with the least relative errors of pairs, of dispatches and of combines. One disturbed
// run changes the result little. No constant is negative. Throws std::invalid_argument for fewer
// samples than constants.
Machine::Host fit_host(const CopySamples& samples);

// Writes what calibrate() and calibrate_links() found. Throws std::runtime_error.
void write_machine(const std::string& file, const nlohmann::ordered_json& machine);

// Measures (runs.h), and writes the machine as JSON to the file. Where the cores were
// moved and stayed elsewhere for half of the rounds, a machine of that place is beside it:
// "here-133ns.json", by the time of a flag. Returns what was found, for people.
std::string calibrate(const std::string& file, int rounds);

}  // namespace ferry::tools
