// The rule behind Algorithm::kAuto, a pure function of the topology and the shape. Called when an
// exchange is created and by `ferry topology`; calls predict.h.
#pragma once

#include <string>

#include "ferry/config.h"
#include "ferry/topology.h"
#include "plan/traffic.h"

namespace ferry::internal {

// The one that plan() puts first, with its sentence. Equals go to kHierarchical.
AlgorithmChoice choose_algorithm(const Topology& topology, const Traffic& traffic);

// "auto", "fullmesh", "hierarchical" or "allgather".
const char* algorithm_name(Algorithm algorithm) noexcept;

}  // namespace ferry::internal
