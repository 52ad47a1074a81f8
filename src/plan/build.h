// Builds the schedules of a strategy on a machine.
#pragma once

#include <vector>

#include "plan/forest.h"
#include "plan/input.h"
#include "plan/schedule.h"
#include "traffic/tree_walk.h"

namespace ferry::internal {

// Makes one task for the equal hops of each class of ranks, from the first rank of the class.
// `forests` has one forest for each path of the strategy, with these first ranks as sources. On a
// machine without links of its own, `forests` is empty, and the hops come from a walk down the tree
// with `copies`.
SchedulePair build(const BuildInput& input, TokenCopies copies,
                   const std::vector<WeighedForest>& forests);

}  // namespace ferry::internal
