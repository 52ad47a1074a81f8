#include "topology/nodes.h"

#include <algorithm>
#include <iterator>

namespace ferry::internal {

namespace {

// The ranks that take part, by tier and group, and where each rank is among those of its group.
class Parts {
 public:
  Parts(const Nodes& nodes, const std::vector<bool>& taking_part, int num_tiers)
      : tiers_(num_tiers) {
    for (int tier = 0; tier < num_tiers; ++tier) {
      std::vector<int> positions;
      for (int rank = 0; rank < nodes.num_ranks(); ++rank) {
        Tier& its = tiers_[tier];
        const std::size_t group = nodes.group_of(rank, tier);
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

  int num_groups(int tier) const { return static_cast<int>(tiers_[tier].parts.size()); }
  int lowest(int group, int tier) const { return tiers_[tier].lowest[group]; }
  // Who serves `rank` in a group: the one at its place, counted round where groups are uneven. -1:
  // nobody takes part there.
  int mate(int rank, int group, int tier) const {
    const std::vector<int>& part = tiers_[tier].parts[group];
    return part.empty() ? -1 : part[tiers_[tier].place[rank] % part.size()];
  }

 private:
  struct Tier {
    std::vector<std::vector<int>> parts;  // [groups]
    std::vector<int> lowest;              // [groups]
    std::vector<int> place;               // [ranks]
  };
  std::vector<Tier> tiers_;
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
  tiers_.push_back(std::move(node_of));
  std::ranges::move(outer, std::back_inserter(tiers_));
}

int Nodes::most_ranks() const noexcept {
  std::size_t most = 0;
  for (const std::vector<int>& ranks : ranks_) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

int Nodes::tier_between(int a, int b, int num_tiers) const noexcept {
  int tier = num_tiers - 1;
  while (tier >= 0 && group_of(a, tier) == group_of(b, tier)) --tier;
  return tier;
}

Border::Border(const Nodes& nodes, int rank, const std::vector<bool>& taking_part, int num_tiers)
    : is_mate(nodes.num_ranks()), is_client(nodes.num_ranks()), branch(nodes.num_ranks()) {
  const Parts parts(nodes, taking_part, num_tiers);
  std::vector<std::vector<int>> way_to(num_tiers);  // [tiers][groups]
  for (int tier = num_tiers - 1; tier >= 0; --tier) {
    for (int group = 0; group < parts.num_groups(tier); ++group) {
      way_to[tier].push_back(-1);
      const int mate = parts.mate(rank, group, tier);
      const bool beside = nodes.tier_between(rank, parts.lowest(group, tier), num_tiers) == tier;
      if (mate < 0 || !beside) continue;
      way_to[tier].back() = static_cast<int>(mates.size());
      mates.push_back({tier, mate});
      is_mate[mate] = true;
    }
  }
  for (int peer = 0; peer < nodes.num_ranks(); ++peer) {
    const int tier = nodes.tier_between(rank, peer, num_tiers);
    const int group = nodes.group_of(peer, std::max(tier, 0));
    way.push_back(tier < 0 ? -1 : way_to[tier][group]);
    branch[peer] = parts.lowest(group, std::max(tier, 0));
    const int mate = tier < 0 ? peer : parts.mate(peer, nodes.group_of(rank, tier), tier);
    via.push_back(mate < 0 ? peer : mate);
  }
  for (int peer = 0; peer < nodes.num_ranks(); ++peer) {
    int writer = peer;
    while (via[writer] != writer) writer = via[writer];
    is_client[peer] = taking_part[peer] && !nodes.here(peer) && writer == rank;
  }
}

}  // namespace ferry::internal
