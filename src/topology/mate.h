// The mate rule. Link::mates joins a rank with its mate in a sibling group. Where Link::mates is
// empty, the position of the mate differs from that of the rank in the bits of Link::mates_xor,
// modulo the size of the mate's group. Over a second way a rank has another mate, by the bits of
// SecondWay. This rule is stated nowhere else in the code. docs/topology.md, "Mates".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/topology.h"

namespace ferry::internal {

// Position of the mate in a group of `group_size` ranks, where Link::mates is empty.
constexpr std::size_t mate_position(std::size_t position, std::size_t group_size,
                                    int mates_xor) noexcept {
  return (position ^ static_cast<std::size_t>(mates_xor)) % group_size;
}

// Whether a token takes the second way, which gets a `share` of the tokens of every long enough
// run.
constexpr bool takes_second_way(std::int64_t token, double share) noexcept {
  const auto before = [share](std::int64_t end) { return static_cast<std::int64_t>(share * end); };
  return before(token + 1) > before(token);
}

// The mate of a rank that has `position` in its own group of a level. `ranks`, ascending: the ranks
// of another group of the level that may be the mate, at least one.
int mate_of(const Topology& topology, int level, int rank, std::size_t position,
            std::span<const int> ranks);
// The mate over the second way of the outermost level.
int second_mate_of(const Topology::SecondWay& way, std::size_t position,
                   std::span<const int> ranks);

}  // namespace ferry::internal
