#include "topology/nodes.h"

#include <algorithm>
#include <iterator>

namespace ferry::internal {

namespace {

// The ranks that take part, by tier and group, and where each rank is among those of its group.
class Parts {
 public:
  Parts(const Nodes& nodes, const std::vector<bool>& taking_part, int num_levels)
      : levels_(num_levels) {
    for (int level = 0; level < num_levels; ++level) {
      std::vector<int> positions;
      for (int rank = 0; rank < nodes.num_ranks(); ++rank) {
        Level& its = levels_[level];
        const std::size_t group = nodes.group_of(rank, level);
        if (group >= its.parts.size()) {
          its.parts.resize(group + 1);
          its.lowest.resize(group + 1, nodes.num_ranks());
          positions.resize(group + 1);
        }
        its.lowest[group] = std::min(its.lowest[group], rank);
        const int own = positions[group]++;
        its.place.push_back(taking_part[rank] ? static_cast<int>(its.parts[group].size()) : own);
        if (taking_part[rank]) its.parts[group].push_back(rank);
      }
    }
  }

  int num_groups(int level) const { return static_cast<int>(levels_[level].parts.size()); }
  int lowest(int group, int level) const { return levels_[level].lowest[group]; }
  // Who serves `rank` in a group: the one at its place, counted round where groups are uneven. -1:
  // nobody takes part there.
  int mate(int rank, int group, int level) const {
    const std::vector<int>& part = levels_[level].parts[group];
    return part.empty() ? -1 : part[levels_[level].place[rank] % part.size()];
  }

 private:
  struct Level {
    std::vector<std::vector<int>> parts;  // [groups]
    std::vector<int> lowest;              // [groups]
    std::vector<int> place;               // [ranks]
  };
  std::vector<Level> levels_;
};

}  // namespace

Nodes::Nodes(std::vector<int> node_of, int rank, std::vector<std::vector<int>> outer)
    : mine_(node_of[rank]) {
  for (std::size_t peer = 0; peer < node_of.size(); ++peer) {
    const std::size_t node = node_of[peer];
    if (node >= ranks_.size()) ranks_.resize(node + 1);
    position_.push_back(static_cast<int>(ranks_[node].size()));
    ranks_[node].push_back(static_cast<int>(peer));
  }
  levels_.push_back(std::move(node_of));
  std::ranges::move(outer, std::back_inserter(levels_));
}

int Nodes::most_ranks() const noexcept {
  std::size_t most = 0;
  for (const std::vector<int>& ranks : ranks_) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

int Nodes::level_between(int a, int b, int num_levels) const noexcept {
  int level = num_levels - 1;
  while (level >= 0 && group_of(a, level) == group_of(b, level)) --level;
  return level;
}

ForwardingTable::ForwardingTable(const Nodes& nodes, int rank, const std::vector<bool>& taking_part,
                                 int num_levels)
    : is_mate(nodes.num_ranks()), is_served(nodes.num_ranks()), subtree(nodes.num_ranks()) {
  const Parts parts(nodes, taking_part, num_levels);
  std::vector<std::vector<int>> next_hop_to(num_levels);  // [tiers][groups]
  for (int level = num_levels - 1; level >= 0; --level) {
    for (int group = 0; group < parts.num_groups(level); ++group) {
      next_hop_to[level].push_back(-1);
      const int mate = parts.mate(rank, group, level);
      const bool beside =
          nodes.level_between(rank, parts.lowest(group, level), num_levels) == level;
      if (mate < 0 || !beside) continue;
      next_hop_to[level].back() = static_cast<int>(mates.size());
      mates.push_back({level, mate});
      is_mate[mate] = true;
    }
  }
  for (int peer = 0; peer < nodes.num_ranks(); ++peer) {
    const int level = nodes.level_between(rank, peer, num_levels);
    const int group = nodes.group_of(peer, std::max(level, 0));
    next_hop.push_back(level < 0 ? -1 : next_hop_to[level][group]);
    subtree[peer] = parts.lowest(group, std::max(level, 0));
    const int mate = level < 0 ? peer : parts.mate(peer, nodes.group_of(rank, level), level);
    last_hop.push_back(mate < 0 ? peer : mate);
  }
  for (int peer = 0; peer < nodes.num_ranks(); ++peer) {
    int writer = peer;
    while (last_hop[writer] != writer) writer = last_hop[writer];
    is_served[peer] = taking_part[peer] && !nodes.here(peer) && writer == rank;
  }
}

}  // namespace ferry::internal
