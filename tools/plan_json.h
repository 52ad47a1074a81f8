// JSON of `ferry plan`: machines in, plans out. Called by plan.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "plan_options.h"

namespace ferry::tools {

// All of a file. Throws std::invalid_argument when it cannot be opened.
std::string read_file(const std::string& name);

// docs/plan.md has the keys; an unknown one is refused with its line and the nearest one.
Machine machine_from_json(const std::string& text);

// Inputs, constants with their sources, and every prediction.
nlohmann::ordered_json plan_json(const PlannedPoint& point);

// Of each kind of links: "name", "load", whose entry in a prediction's loads it has, and "pairs" of
// ranks.
nlohmann::ordered_json links_json(const Machine& machine);

}  // namespace ferry::tools
