// The mate rule: a rank's mate in a sibling group is the rank that Link::mates joins it with; where
// there are none, the one that has the same position, or differs in the bits of Link::mates_xor,
// counted round where groups are uneven. The forwarding table, the count of the bytes (plan) and
// the tools all ask here. docs/topology.md, "Mates".
#pragma once

#include <cstddef>
#include <span>

#include "ferry/topology.h"

namespace ferry::internal {

// Position of the mate in a group of `group_size` ranks, by positions alone.
constexpr std::size_t mate_position(std::size_t position, std::size_t group_size,
                                    const Topology::Link& link) noexcept {
  return (position ^ static_cast<std::size_t>(link.mates_xor)) % group_size;
}

// The mate of a rank, which is at `position` of its own group of a level. `ranks`: those of another
// group of the level that may be it, ascending.
int mate_of(const Topology& topology, int level, int rank, std::size_t position,
            std::span<const int> ranks);

}  // namespace ferry::internal
