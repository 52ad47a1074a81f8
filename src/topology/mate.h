// The mate rule. No other code states it (docs/topology.md, "Mates"). Link::mates joins a rank with
// its mate in a sibling group. If Link::mates is empty, or that mate does not take part, the
// position of the mate differs from that of the rank in the bits of Link::mates_xor, modulo the
// number of ranks that may be the mate. Over a second way a rank has another mate, by the bits of
// SecondWay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/topology.h"

namespace ferry::internal {

// The position of the mate among `group_size` ranks, where Link::mates names none.
constexpr std::size_t mate_position(std::size_t position, std::size_t group_size,
                                    int mates_xor) noexcept {
  return (position ^ static_cast<std::size_t>(mates_xor)) % group_size;
}

// Whether a token takes the second way. A share `share` of the tokens takes it, in every
// sufficiently long run of tokens.
constexpr bool takes_second_way(std::int64_t token, double share) noexcept {
  const auto before = [share](std::int64_t end) { return static_cast<std::int64_t>(share * end); };
  return before(token + 1) > before(token);
}

// The mate of a rank that has `position` in its own group of a level. `ranks` lists the ranks of
// another group of the level that may be the mate. They are ascending and at least one.
int mate_of(const Topology& topology, int level, int rank, std::size_t position,
            std::span<const int> ranks);
// The mate over the second way of the outermost level.
int second_mate_of(const Topology::SecondWay& way, std::size_t position,
                   std::span<const int> ranks);

}  // namespace ferry::internal
