// Writes plans as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/plan/options.h"

namespace ferry::tools {

// The object has the inputs, the constants with their sources, and every prediction.
nlohmann::ordered_json plan_json(const PlannedPoint& point);

// Returns an entry for each kind of links, with "name", "load" (the name of its entry in the loads
// of a prediction), and "pairs" of ranks.
nlohmann::ordered_json links_json(const Machine& machine);

}  // namespace ferry::tools
