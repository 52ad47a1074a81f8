// Summed: the schedules of a strategy where the hops are too many for a task each. Loads, memory
// and bounds equal those of build() with every rank a class.
#pragma once

#include <vector>

#include "plan/forest.h"
#include "plan/input.h"
#include "plan/schedule.h"

namespace ferry::internal {

// `forests`: one for each path of the strategy, with all ranks as sources. Each rank is a class.
SchedulePair build_summed(const BuildInput& input, const std::vector<WeighedForest>& forests);

}  // namespace ferry::internal
