// Shows the rates of all ranks between two samples, as a table for each group or as JSON.
#pragma once

#include <string>

#include "tools/top/sample.h"

namespace ferry::tools {

// The table shows the groups and ranks that are in both samples.
std::string top_table(const Sample& before, const Sample& now);
// The JSON is one line.
std::string top_json(const Sample& before, const Sample& now);

}  // namespace ferry::tools
