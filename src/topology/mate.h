// The mate rule: a rank's mate in a sibling group is the rank there that has the same position,
// counted round where groups are uneven. The forwarding table, the count of the bytes (plan) and
// the tools all ask here. docs/topology.md, "Mates".
#pragma once

#include <cstddef>

namespace ferry::internal {

// Position of the mate in a group of `group_size` ranks.
constexpr std::size_t mate_position(std::size_t position, std::size_t group_size) noexcept {
  return position % group_size;
}

}  // namespace ferry::internal
