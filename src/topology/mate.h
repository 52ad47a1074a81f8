// The mate rule: a rank's mate in a sibling group is the rank there that has the same position, or
// the one that differs in the bits of Link::mates_xor, counted round where groups are uneven. The
// forwarding table, the count of the bytes (plan) and the tools all ask here. docs/topology.md,
// "Mates".
#pragma once

#include <cstddef>

#include "ferry/topology.h"

namespace ferry::internal {

// Position of the mate in a group of `group_size` ranks.
constexpr std::size_t mate_position(std::size_t position, std::size_t group_size,
                                    const Topology::Link& link) noexcept {
  return (position ^ static_cast<std::size_t>(link.mates_xor)) % group_size;
}

}  // namespace ferry::internal
