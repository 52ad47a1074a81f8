// Build: the schedules of a strategy on a machine.
#pragma once

#include <vector>

#include "plan/forest.h"
#include "plan/input.h"
#include "plan/schedule.h"
#include "traffic/tree_walk.h"

namespace ferry::internal {

// A task for the hops of each class of ranks, from the first rank of the class. `forests`: one for
// each way of the strategy, with these ranks as sources. Where the tree's own links are the machine
// there are none, and `copies` says what crosses.
SchedulePair build(const BuildInput& input, TokenCopies copies,
                   const std::vector<WeighedForest>& forests);

}  // namespace ferry::internal
