// RankTraits: the properties of ranks, as numbers that are equal for equal ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace ferry::internal {

// One number for each rank.
using Colours = std::vector<std::uint64_t>;

struct RankTraits {
  Colours colours;                       // [ranks]
  std::vector<std::vector<int>> groups;  // [ways to group them][ranks]
};

}  // namespace ferry::internal
