// Predicts the bytes, memory, bounds and times of a strategy from its schedules.
#pragma once

#include <string>

#include "ferry/plan.h"
#include "plan/schedule.h"
#include "traffic/ranking.h"

namespace ferry::internal {

// The limit for the tasks, or pieces of tasks, of a dispatch or a combine that is simulated.
constexpr std::size_t kMostTasks = 20000;

// Fills all members except Prediction::step. A pair without `ways` has at most kMostTasks tasks per
// schedule.
Prediction predict(const std::string& strategy, const SchedulePair& pair,
                   const PlanOptions& options);

// The part of a prediction that ranking.h compares.
Candidate candidate_of(const Prediction& prediction);

}  // namespace ferry::internal
