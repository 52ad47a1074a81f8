// Computes the forward step of a model with tensor and pipeline parallel ranks, and with pairs of
// micro-batches.
#pragma once

#include "ferry/plan.h"
#include "plan/input.h"

namespace ferry::internal {

// The traffic of a rank, if each of `tp` neighbours sends its share of their tokens.
Traffic share_of_tp(Traffic traffic, int tp);

// The gather after a combine. In it, each rank receives the results of the tokens that its
// neighbours sent.
struct Gather {
  double bytes = 0, us = 0;  // for each rank
};
Gather gather_of(const BuildInput& input, int tp);

Step step_of(const Prediction& prediction, const Gather& gather, const Workload& workload,
             double contention);

}  // namespace ferry::internal
