// Plans as CSV (RFC 4180).
#pragma once

#include <string>

#include "tools/plan/options.h"

namespace ferry::tools {

// The names of the columns, which are those of the JSON.
std::string csv_header();
// A line for each strategy, the best first.
std::string csv_lines(const PlannedPoint& point);

}  // namespace ferry::tools
