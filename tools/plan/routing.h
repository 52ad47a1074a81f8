// The routing of a planned workload, from a text. Calls bench/routing.h, so that every routing of
// the bench can be planned.
#pragma once

#include <cstdint>
#include <string>

#include "ferry/plan.h"

namespace ferry::tools {

// "uniform"; "limited:M/G", experts of M of G groups; a file .json with a list of loads; or
// "zipf:S", "real" and "load:FILE[:LAYER]" as `ferry bench --routing` has them, with its seed.
// Throws std::invalid_argument.
void set_routing(const std::string& text, std::uint64_t seed, Workload& workload);

}  // namespace ferry::tools
