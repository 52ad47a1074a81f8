// The rule behind Algorithm::kAuto, a pure function of the topology and the shape. Called when an
// exchange is created and by `ferry topology`; calls traffic.h.
#pragma once

#include <string>

#include "ferry/config.h"
#include "ferry/topology.h"
#include "plan/traffic.h"

namespace ferry::internal {

// Whichever needs the least time for the expected bytes of a dispatch and its combine over the
// busiest links between nodes; where no bandwidth is known, whichever puts the fewest bytes on
// those of the outermost level. Equal costs go to kHierarchical.
AlgorithmChoice choose_algorithm(const Topology& topology, const Traffic& traffic);

// "auto", "fullmesh", "hierarchical" or "allgather".
const char* algorithm_name(Algorithm algorithm) noexcept;

// "14.3 KB": 1 KB = 1000 bytes, as in the GB/s of links.
std::string bytes_text(double bytes);
// "27.5 us".
std::string time_text(double us);

}  // namespace ferry::internal
