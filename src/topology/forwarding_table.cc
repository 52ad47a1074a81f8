#include "topology/forwarding_table.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "topology/mate.h"

namespace ferry::internal {

namespace {

// The ranks that take part, in each group of the levels that have mates.
class Members {
 public:
  Members(const Topology& topology, const std::vector<bool>& taking_part, bool flat,
          bool second_way)
      : host(topology.find_level(Topology::kHost)),
        outermost(flat ? host : 0),
        topology_(topology),
        second_way_(second_way),
        active_(host + 1),
        positions_(host + 1) {
    for (int level = outermost; level <= host; ++level) {
      positions_[level].resize(topology.num_ranks());
      for (int group = 0; group < num_groups(level); ++group) {
        std::vector<int>& active = active_[level].emplace_back();
        int position = 0;
        for (const int rank : topology.members(group, level)) {
          const bool takes_part = taking_part[rank];
          positions_[level][rank] = takes_part ? static_cast<int>(active.size()) : position;
          if (takes_part) active.push_back(rank);
          ++position;
        }
      }
    }
  }

  int num_groups(int level) const { return topology_.level(level).num_groups(); }
  int lowest(int group, int level) const { return topology_.members(group, level).front(); }
  // The mate of `rank` in a group, or -1 if no rank of the group takes part.
  int mate(int rank, int group, int level) const {
    const std::vector<int>& active = active_[level][group];
    if (active.empty()) return -1;
    const int position = positions_[level][rank];
    if (second_way_ && level == outermost)
      return second_mate_of(*topology_.level(level).link.second_way, position, active);
    return mate_of(topology_, level, rank, position, active);
  }
  // The outermost level at which two ranks are in different groups. It is host + 1 if they are of
  // one node.
  int level_between(int a, int b) const {
    int level = outermost;
    while (level <= host && topology_.group_of(a, level) == topology_.group_of(b, level)) ++level;
    return level;
  }

  const int host, outermost;

 private:
  const Topology& topology_;
  const bool second_way_;
  std::vector<std::vector<std::vector<int>>> active_;  // [levels][groups]: ranks
  std::vector<std::vector<int>> positions_;            // [levels][ranks]
};

// Checks a table. Its mates take part, are distinct ranks of other nodes, and are sorted from the
// outermost level to the inner ones. Next hops are mates, and no rank of this node has one.
void check_table(const Topology& topology, int rank, const std::vector<bool>& taking_part,
                 const ForwardingTable& table) {
  const int num_ranks = topology.num_ranks();
  for (std::size_t i = 0; i < table.mates.size(); ++i) {
    const auto [level, mate] = table.mates[i];
    FERRY_CHECK(mate, >=, 0);
    FERRY_CHECK(mate, <, num_ranks);
    FERRY_CHECK(taking_part[mate], ==, true);
    FERRY_CHECK(topology.node_of(mate), !=, topology.node_of(rank));
    FERRY_CHECK(level, >=, i == 0 ? table.outermost : table.mates[i - 1].level);
  }
  FERRY_CHECK(std::ranges::count(table.is_mate, true), ==, std::ssize(table.mates));
  FERRY_CHECK(std::ssize(table.next_hop), ==, num_ranks);
  FERRY_CHECK(std::ssize(table.last_hop), ==, num_ranks);
  for (const int peer : topology.node_ranks(topology.node_of(rank))) {
    FERRY_CHECK(table.next_hop[peer], ==, -1);
    FERRY_CHECK(table.last_hop[peer], ==, peer);
    FERRY_CHECK(table.is_served[peer], ==, false);
  }
  const auto highest = std::ranges::max_element(table.next_hop);
  FERRY_CHECK(*highest, <, std::ssize(table.mates));
}

}  // namespace

ForwardingTable::ForwardingTable(const Topology& topology, int rank,
                                 const std::vector<bool>& taking_part, bool flat, bool second_way)
    : is_mate(topology.num_ranks()), is_served(topology.num_ranks()) {
  const Members members(topology, taking_part, flat, second_way);
  std::vector<std::vector<int>> hops(members.host + 1);  // [levels][groups]
  for (int level = members.outermost; level <= members.host; ++level) {
    hops[level].assign(members.num_groups(level), -1);
    for (int group = 0; group < members.num_groups(level); ++group) {
      const int mate = members.mate(rank, group, level);
      const bool sibling = members.level_between(rank, members.lowest(group, level)) == level;
      if (mate < 0 || !sibling) continue;
      hops[level][group] = static_cast<int>(mates.size());
      mates.push_back({level, mate});
      is_mate[mate] = true;
    }
  }
  outermost = mates.empty() ? members.host : mates[0].level;
  for (int peer = 0; peer < topology.num_ranks(); ++peer) {
    const int between = members.level_between(rank, peer);
    const bool here = between > members.host;
    const int level = std::min(between, members.host), group = topology.group_of(peer, level);
    next_hop.push_back(here ? -1 : hops[level][group]);
    subtree.push_back(members.lowest(group, level));
    const int mate = here ? -1 : members.mate(peer, topology.group_of(rank, level), level);
    last_hop.push_back(mate < 0 ? peer : mate);
  }
  for (int peer = 0; peer < topology.num_ranks(); ++peer) {
    int writer = peer;
    while (last_hop[writer] != writer) writer = last_hop[writer];
    is_served[peer] = taking_part[peer] && peer != rank && writer == rank;
  }
  check_table(topology, rank, taking_part, *this);
}

}  // namespace ferry::internal
