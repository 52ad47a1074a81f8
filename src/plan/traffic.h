// Traffic: how many bytes an exchange sends over each level of a topology when every set of K
// experts is as likely as any other. Exact expectations, payload only (rows and their scales).
// Called by choose.h and `ferry topology`; calls kernels/wire_formats.h for the size of a row.
#pragma once

#include <cstdint>
#include <vector>

#include "ferry/config.h"
#include "ferry/topology.h"

namespace ferry::internal {

struct Traffic {
  std::int64_t tokens = 0;  // of each rank
  int top_k = 0;
  std::vector<int> rank_experts;  // [ranks]: experts that each owns
  double row_bytes = 0;           // of dispatch
  double output_bytes = 0;        // a row of combine
  double sum_bytes = 0;           // a node's sum of rows, on its way back
  bool row_per_rank = false;      // else a row per expert (ferry::Layout)
  bool exact = false;             // rows instead of sums return (NodeSums::kExact)
};

// Of routed experts: shared ones, replicas and masks are left out. Outputs have the type of the
// tokens.
Traffic traffic_of(const ExchangeConfig& config, int num_ranks);

// That a token goes to at least one of these experts.
double touch_probability(const Traffic& traffic, int experts);

// Of the busiest link of a level, in its busier direction.
struct LinkBytes {
  double dispatch = 0;
  double combine = 0;
  double pair() const noexcept { return dispatch + combine; }
};

// [levels]. From level "host" outwards: what crosses the network, which depends on the algorithm.
// Inside: loads and stores, of sources and mates; algorithms differ there only where a tree with
// levels outside the host is uneven, as other ranks are mates then.
std::vector<LinkBytes> level_bytes(const Topology& topology, const Traffic& traffic,
                                   Algorithm algorithm);

}  // namespace ferry::internal
