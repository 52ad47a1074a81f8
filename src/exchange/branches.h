// TokenGroups: the entries of one token by the group of ranks that they go to, which is what a
// token crosses a link once for, and what is summed before it comes home (docs/numerics.md,
// "Between nodes"). Pure. Called by cross_rows.cc, incoming_sums.cc and terms.cc.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "exchange/limits.h"
#include "ferry/config.h"
#include "routing/route.h"
#include "topology/nodes.h"

namespace ferry::internal {

// What a group is: a node, or with kFullmesh a rank of another node. Numbered by its lowest rank.
struct Grouping {
  const Nodes* nodes;
  Algorithm algorithm;

  int group_of(int rank) const noexcept {
    const int node = nodes->node_of(rank);
    const bool alone = algorithm == Algorithm::kFullmesh && node != nodes->mine();
    return alone ? rank : nodes->ranks_of(node)[0];
  }
};

class TokenGroups {
 public:
  struct Group {
    int group;
    int node;
    std::span<const std::int64_t> entries;  // ascending
  };

  // Of the entries [first, first + count) that are sent. Ascending groups.
  TokenGroups(const Grouping& grouping, const Route& route, std::int64_t first, int count);

  int count() const noexcept { return num_groups_; }
  Group operator[](int i) const noexcept {
    const int begin = begin_[i], end = i + 1 < num_groups_ ? begin_[i + 1] : num_entries_;
    return {group_[begin], node_[begin],
            std::span(entries_).subspan(begin, static_cast<std::size_t>(end - begin))};
  }

 private:
  int num_groups_ = 0, num_entries_ = 0;
  std::array<int, kMaxEntries> begin_, group_, node_;
  std::array<std::int64_t, kMaxEntries> entries_;
};

}  // namespace ferry::internal
