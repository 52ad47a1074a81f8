// Predict: the schedules of a strategy read as bytes, memory, bound and time. Called by plan.cc;
// calls schedule.h.
#pragma once

#include "ferry/plan.h"
#include "plan/build.h"
#include "plan/strategies.h"

namespace ferry::internal {

Prediction predict(const Strategy& strategy, const SchedulePair& pair, const PlanOptions& options);

}  // namespace ferry::internal
