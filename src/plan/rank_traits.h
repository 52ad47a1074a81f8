// RankTraits: what a routing says about each rank. Ranks that hold equally many experts with equal
// loads have the same colour. `groups` has the groups to which each rank belongs.
#pragma once

#include <cstdint>
#include <vector>

namespace ferry::internal {

// A number for each rank.
using Colours = std::vector<std::uint64_t>;

struct RankTraits {
  Colours colours;                       // [ranks]
  std::vector<std::vector<int>> groups;  // [ways to group them][ranks]
};

}  // namespace ferry::internal
