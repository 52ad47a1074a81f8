// Writes plans as CSV (RFC 4180).
#pragma once

#include <string>

#include "tools/plan/options.h"

namespace ferry::tools {

// The names of the columns. They are those of the JSON.
std::string csv_header();
// Returns a line for each strategy, the best one first.
std::string csv_lines(const PlannedPoint& point);

}  // namespace ferry::tools
