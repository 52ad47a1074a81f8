// BuildInput: the inputs of the schedules of a strategy.
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
