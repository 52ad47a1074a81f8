// The choice of Algorithm::kAuto: a pure function of the topology and the traffic.
#pragma once

#include "ferry/config.h"
#include "ferry/topology.h"
#include "traffic/ranking.h"
#include "traffic/traffic.h"

namespace ferry::internal {

// An algorithm with its bytes on each level, and a lower bound of its time from these bytes and
// from latencies. The planner's simulation of the same tree takes at least as long, as steps share
// links.
Candidate candidate_of(const Topology& topology, const Traffic& traffic, Algorithm algorithm);

// The algorithm that best_first() puts first, with the sentence of why(). Equal ones are preferred
// in the order kHierarchical, kFullmesh, kAllgather. On one node, kFullmesh without a comparison.
AlgorithmChoice choose_algorithm(const Topology& topology, const Traffic& traffic);

// Returns "auto", "fullmesh", "hierarchical" or "allgather".
const char* algorithm_name(Algorithm algorithm) noexcept;

}  // namespace ferry::internal
