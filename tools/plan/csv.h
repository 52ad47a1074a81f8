// Writes plans as CSV: quotes as in RFC 4180, but lines end with "\n".
#pragma once

#include <string>

#include "tools/plan/options.h"

namespace ferry::tools {

// The names of the columns. They are those of the JSON.
std::string csv_header();
// Returns a line for each strategy, the best one first.
std::string csv_lines(const PlannedPoint& point);

}  // namespace ferry::tools
