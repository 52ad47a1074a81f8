// What one rank of the bench does: set up, warm up, measure, check. Called by measure.cc on every
// rank.
#pragma once

#include "bench/plan.h"
#include "bench/results.h"
#include "ferry/group.h"

namespace ferry::bench {

// Exchanges of one batch of the free-running loop.
std::size_t pairs_per_batch(const Plan& plan, const Results& results) noexcept;

// Runs rank group.rank() of `plan` and fills its part of `results`. Throws ferry::Error.
void run_rank(const Plan& plan, Results& results, Group group);

}  // namespace ferry::bench
