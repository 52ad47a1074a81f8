// A topology as a picture: SVG (boxes in boxes, equal colours are mates) and DOT (for Graphviz).
// Called by topology.cc.
#pragma once

#include <string>
#include <vector>

#include "ferry/topology.h"

namespace ferry::tools {

// `lines` stand below the picture.
std::string topology_svg(const Topology& topology, const std::vector<std::string>& lines);
std::string topology_dot(const Topology& topology, const std::vector<std::string>& lines);

}  // namespace ferry::tools
