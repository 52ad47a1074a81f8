// What happened between two samples: a table for each group, or JSON.
#pragma once

#include <string>

#include "tools/top/sample.h"

namespace ferry::tools {

// Groups and ranks that are in both.
std::string top_table(const Sample& before, const Sample& now);
// One line.
std::string top_json(const Sample& before, const Sample& now);

}  // namespace ferry::tools
