// Totals: what the tasks of all ranks put on each resource, and bounds of their times, where the
// tasks are too many to list. Loads, memory and lower bounds are those of the schedules that
// build.h makes with every rank a class. Called by plan.cc; calls forest.h and build.h.
#pragma once

#include <vector>

#include "plan/build.h"
#include "plan/forest.h"

namespace ferry::internal {

// All but Prediction::step. `forests`: of the ways of the strategy.
Prediction total(const BuildInput& input, const Strategy& strategy,
                 const std::vector<const Forest*>& forests, bool doubled);

}  // namespace ferry::internal
