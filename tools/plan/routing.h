// Reads the routing of a planned workload from a text. Calls bench/routing.h, so that every routing
// of the bench can be planned.
#pragma once

#include <cstdint>
#include <string>

#include "ferry/plan.h"

namespace ferry::tools {

// Accepts "uniform", "limited:M/G" (the experts of a token are in M of G groups), a .json file with
// a list of loads, or one of "zipf:S", "real", "load:FILE[:LAYER]" and "ids:FILE[:LAYER]", which
// mean the same as in `ferry bench --routing` with its seed. Throws std::invalid_argument.
void set_routing(const std::string& text, std::uint64_t seed, Workload& workload);

}  // namespace ferry::tools
