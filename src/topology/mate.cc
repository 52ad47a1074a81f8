#include "topology/mate.h"

#include <algorithm>

#include "base/check.h"

namespace ferry::internal {

int mate_of(const Topology& topology, int level, int rank, std::size_t position,
            std::span<const int> ranks) {
  FERRY_CHECK(ranks.size(), >, 0U);
  const Topology::Link& link = topology.level(level).link;
  if (!link.mates.empty()) {
    const int above = level == 0 ? 0 : topology.group_of(rank, level - 1);
    const int first = level == 0 ? 0 : topology.members(above, level - 1).front();
    for (const auto& [a, b] : link.mates) {
      if (first + a != rank && first + b != rank) continue;
      const int other = first + a == rank ? first + b : first + a;
      if (std::ranges::binary_search(ranks, other)) return other;
    }
  }
  return ranks[mate_position(position, ranks.size(), link.mates_xor)];
}

int second_mate_of(const Topology::SecondWay& way, std::size_t position,
                   std::span<const int> ranks) {
  FERRY_CHECK(ranks.size(), >, 0U);
  return ranks[mate_position(position, ranks.size(), way.mates_xor)];
}

}  // namespace ferry::internal
