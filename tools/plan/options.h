// The options of `ferry plan`. Filled by plan.cc; read by report.cc and json.cc.
#pragma once

#include <string>
#include <vector>

#include "ferry/plan.h"

namespace ferry::tools {

struct PlanRequest {
  std::string machine;  // a text, a preset or a file
  std::string model;    // empty: the shape alone
  Workload workload = {};
  int ep = 0;  // 0: all ranks of the machine
  PlanOptions options = {};
};

// One machine, workload and size, planned.
struct PlannedPoint {
  Machine machine;
  Workload workload;
  int chunks = PlanOptions().chunks;
  Plan plan;
};

}  // namespace ferry::tools
