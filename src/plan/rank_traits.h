// RankTraits: the properties of ranks as numbers. Ranks with equal properties have equal numbers.
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
