// The options of `ferry plan`.
#pragma once

#include <string>
#include <vector>

#include "ferry/plan.h"

namespace ferry::tools {

struct PlanRequest {
  std::string machine;  // a text, the name of a preset, or a file
  std::string model;    // empty: the workload gives the whole shape
  Workload workload = {};
  int ep = 0;  // 0: all ranks of the machine
  PlanOptions options = {};
};

// The plan of one machine, workload and group size.
struct PlannedPoint {
  Machine machine;
  Workload workload;
  int chunks = PlanOptions().chunks;
  Plan plan;
};

}  // namespace ferry::tools
