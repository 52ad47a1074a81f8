// What `ferry topology` says: text for people, JSON for programs. Called by topology.cc; calls
// topology/choose.h and topology_json.h.
#pragma once

#include <string>
#include <vector>

#include "ferry/config.h"
#include "ferry/topology.h"

namespace ferry::tools {

// "0-3,8"
std::string ranks_text(const Topology& topology, int group, int level);
// "8 links of 50 GB/s, 5 us"; empty: nothing is known.
std::string link_text(const Topology::Link& link);
// A line per level: "host: 38.9 MB with fullmesh, ...".
std::vector<std::string> traffic_lines(const Topology& topology, const ExchangeConfig& config);

std::string topology_text(const Topology& topology, const ExchangeConfig& config);
std::string topology_json(const Topology& topology, const ExchangeConfig& config);

}  // namespace ferry::tools
