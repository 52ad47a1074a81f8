// Predict: the schedules of a strategy read as bytes, memory, bound and time.
#pragma once

#include <string>

#include "ferry/plan.h"
#include "plan/schedule.h"
#include "traffic/ranking.h"

namespace ferry::internal {

// Tasks of a dispatch, or a combine, that are simulated, at most, as many pieces as they may have.
constexpr std::size_t kMostTasks = 20000;

// All but Prediction::step. Schedules without ways have no more tasks than that.
Prediction predict(const std::string& strategy, const SchedulePair& pair,
                   const PlanOptions& options);

// A prediction as ranking.h compares it.
Candidate candidate_of(const Prediction& prediction);

}  // namespace ferry::internal
