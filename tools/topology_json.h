// A topology as JSON: {"levels": [{"name": "host", "fanout": 2, "bandwidth_gb_s": 12.5,
// "latency_us": 5, "links": 1}, ..]}, where "fanout" may be a list with one number for each group
// above, and what a link lacks is unknown. The library knows the text form only; this converts.
// Called by topology.cc and topology_report.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ferry/topology.h"

namespace ferry::tools {

// Takes objects with other keys beside "levels", such as the output of `ferry topology --json`.
// Throws std::invalid_argument.
Topology topology_from_json(const std::string& text);

nlohmann::ordered_json levels_json(const Topology& topology);

}  // namespace ferry::tools
