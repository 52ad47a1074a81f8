// Traffic: what of an exchange decides how many bytes it moves. Payload only: rows and their
// scales. Called by routing.h, build.h and `ferry topology`; calls kernels/wire_formats.h for the
// size of a row.
#pragma once

#include <cstdint>
#include <vector>

#include "ferry/config.h"

namespace ferry::internal {

struct Traffic {
  std::int64_t tokens = 0;  // of each rank
  int top_k = 0;
  std::vector<int> rank_experts;  // [ranks]: experts that each owns
  double row_bytes = 0;           // of dispatch
  double output_bytes = 0;        // a row of combine
  double sum_bytes = 0;           // a node's sum of rows, on its way back
  double result_bytes = 0;        // of a token, as combine writes it
  bool row_per_rank = false;      // else a row per expert (ferry::Layout)
  bool exact = false;             // rows instead of sums return (NodeSums::kExact)
};

// Of routed experts: shared ones, replicas and masks are left out. Outputs have the type of the
// tokens.
Traffic traffic_of(const ExchangeConfig& config, int num_ranks);

}  // namespace ferry::internal
