// The mate rule: a rank's mate in a sibling group is the rank that Link::mates joins it with; where
// there are none, the one that has the same position, or differs in the bits of Link::mates_xor,
// counted round where groups are uneven. Over a second way it has another mate, by SecondWay's
// bits. The forwarding table, the count of the bytes (plan) and the tools all ask here.
// docs/topology.md, "Mates".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/topology.h"

namespace ferry::internal {

// Position of the mate in a group of `group_size` ranks, by positions alone.
constexpr std::size_t mate_position(std::size_t position, std::size_t group_size,
                                    int mates_xor) noexcept {
  return (position ^ static_cast<std::size_t>(mates_xor)) % group_size;
}

// Which tokens take the second way, of which it gets a `share`: so many of every run of tokens.
constexpr bool takes_second_way(std::int64_t token, double share) noexcept {
  const auto before = [share](std::int64_t end) { return static_cast<std::int64_t>(share * end); };
  return before(token + 1) > before(token);
}

// The mate of a rank, which is at `position` of its own group of a level. `ranks`: those of another
// group of the level that may be it, ascending.
int mate_of(const Topology& topology, int level, int rank, std::size_t position,
            std::span<const int> ranks);
// The same over the second way of the outermost level.
int second_mate_of(const Topology::SecondWay& way, std::size_t position,
                   std::span<const int> ranks);

}  // namespace ferry::internal
