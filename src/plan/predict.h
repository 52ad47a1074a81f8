// Predict: the bytes, memory, bounds and times of the schedules of a strategy.
#pragma once

#include <string>

#include "ferry/plan.h"
#include "plan/schedule.h"
#include "traffic/ranking.h"

namespace ferry::internal {

// The most tasks, or pieces of tasks, of a dispatch or a combine that are simulated.
constexpr std::size_t kMostTasks = 20000;

// Fills all members except Prediction::step. Schedules without ways have at most kMostTasks tasks.
Prediction predict(const std::string& strategy, const SchedulePair& pair,
                   const PlanOptions& options);

// The part of a prediction that ranking.h compares.
Candidate candidate_of(const Prediction& prediction);

}  // namespace ferry::internal
