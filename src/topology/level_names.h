// The names of the levels of a tree, from the outermost to the innermost. Messages suggest names
// from this list.
#pragma once

#include <string>
#include <vector>

#include "ferry/topology.h"

namespace ferry::internal {

inline std::vector<std::string> level_names(const Topology& tree) {
  std::vector<std::string> names;
  for (int level = 0; level < tree.num_levels(); ++level) names.push_back(tree.level(level).name);
  return names;
}

}  // namespace ferry::internal
