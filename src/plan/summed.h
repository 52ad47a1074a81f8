// Builds the schedules of a strategy that has too many hops for a task each. Loads, memory and
// bounds are those that build() would give with every rank as a class.
#pragma once

#include <vector>

#include "plan/forest.h"
#include "plan/input.h"
#include "plan/schedule.h"

namespace ferry::internal {

// `forests` has one forest for each path of the strategy, with all ranks as sources. Each rank is a
// class.
SchedulePair build_summed(const BuildInput& input, const std::vector<WeighedForest>& forests);

}  // namespace ferry::internal
