// Strategies: the ways of exchange that a machine can run. Called by plan.cc; calls graph.h.
#pragma once

#include <vector>

#include "plan/routes.h"

namespace ferry::internal {

std::vector<Strategy> strategies_of(const Graph& graph);

}  // namespace ferry::internal
