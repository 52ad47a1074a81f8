// Predict: the schedules of a strategy read as bytes, memory, bound and time. Called by plan.cc and
// choose.cc; calls schedule.h.
#pragma once

#include "ferry/plan.h"
#include "plan/build.h"
#include "plan/strategies.h"
#include "traffic/ranking.h"

namespace ferry::internal {

// Tasks of a dispatch, or a combine, that are simulated, at most, as many pieces as they may have.
constexpr std::size_t kMostTasks = 20000;

// Of no more tasks than that.
Prediction predict(const Strategy& strategy, const SchedulePair& pair, const PlanOptions& options);

// A prediction as ranking.h compares it.
Candidate candidate_of(const Prediction& prediction);

}  // namespace ferry::internal
