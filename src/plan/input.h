// BuildInput: what a plan of one strategy is made from.
#pragma once

#include "plan/classes.h"
#include "plan/graph.h"
#include "plan/routing.h"
#include "traffic/traffic.h"

namespace ferry::internal {

struct BuildInput {
  const Graph& graph;
  const Classes& classes;
  const Traffic& traffic;
  const Routing& routing;
  int chunks = 1;
};

}  // namespace ferry::internal
