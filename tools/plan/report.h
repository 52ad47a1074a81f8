// The text that `ferry plan` prints.
#pragma once

#include <string>

#include "tools/plan/options.h"

namespace ferry::tools {

std::string plan_text(const PlannedPoint& point, bool explain);

}  // namespace ferry::tools
