// Parallel: what tensor and pipeline parallel ranks, and pairs of micro-batches, make of an
// exchange.
#pragma once

#include "ferry/plan.h"
#include "plan/input.h"

namespace ferry::internal {

// Each of `tp` neighbours sends its share of their tokens.
Traffic share_of_tp(Traffic traffic, int tp);

// After a combine each rank gets the results of the tokens that its neighbours sent.
struct Gather {
  double bytes = 0, us = 0;  // of a rank
};
Gather gather_of(const BuildInput& input, int tp);

Step step_of(const Prediction& prediction, const Gather& gather, const Workload& workload,
             double contention);

}  // namespace ferry::internal
