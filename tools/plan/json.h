// JSON of plans.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/plan/options.h"

namespace ferry::tools {

// Inputs, constants with their sources, and every prediction.
nlohmann::ordered_json plan_json(const PlannedPoint& point);

// For each kind of links: "name", "load" (the name of its entry in the loads of a prediction), and
// "pairs" of ranks.
nlohmann::ordered_json links_json(const Machine& machine);

}  // namespace ferry::tools
