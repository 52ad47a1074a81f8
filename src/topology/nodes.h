// Nodes: which ranks share memory with which, and who serves whom across the border. Pure data,
// equal on all ranks but for `rank`. Made from what the rendezvous found; read by group, routing
// and exchange.
#pragma once

#include <vector>

namespace ferry::internal {

class Nodes {
 public:
  // `node_of` [ranks], nodes numbered from 0. `outer`: the groups that nodes are in, from the
  // inside out, each [ranks].
  Nodes(std::vector<int> node_of, int rank, std::vector<std::vector<int>> outer = {});

  int count() const noexcept { return static_cast<int>(ranks_.size()); }
  int num_ranks() const noexcept { return static_cast<int>(position_.size()); }
  bool one() const noexcept { return ranks_.size() == 1; }
  int mine() const noexcept { return mine_; }
  int node_of(int rank) const noexcept { return levels_[0][rank]; }
  bool here(int rank) const noexcept { return node_of(rank) == mine_; }
  // Ascending.
  const std::vector<int>& ranks_of(int node) const noexcept { return ranks_[node]; }
  const std::vector<int>& ranks_here() const noexcept { return ranks_[mine_]; }
  // Of a rank among those of its node.
  int position(int rank) const noexcept { return position_[rank]; }
  int most_ranks() const noexcept;

  // Tiers of groups that a network joins, from the inside out: tier 0 is that of the nodes.
  int num_levels() const noexcept { return static_cast<int>(levels_.size()); }
  int group_of(int rank, int level) const noexcept { return levels_[level][rank]; }
  // The outermost tier, of the first `num_tiers`, at which two ranks are of different groups; -1:
  // there is none.
  int level_between(int a, int b, int num_levels) const noexcept;

 private:
  std::vector<std::vector<int>> levels_;  // [tiers][ranks]: groups
  std::vector<int> position_;
  std::vector<std::vector<int>> ranks_;
  int mine_;
};

// Border: who serves whom between my node and the others, among the ranks that take part. What a
// rank sends goes to its mate in each other group of the outermost tier, and of each tier further
// in to those that are in one group with it so far; each of them serves its group in the same way.
struct ForwardingTable {
  ForwardingTable() = default;
  // `taking_part` [ranks]. Positions are counted among those that do; a rank that does not keeps
  // its own. Tiers from `num_tiers` on are as if there were none.
  ForwardingTable(const Nodes& nodes, int rank, const std::vector<bool>& taking_part,
                  int num_levels = 1);

  // Who takes my messages, in each group where somebody takes part.
  struct Mate {
    int level, rank;
  };
  std::vector<Mate> mates;  // the outermost tier first
  int outermost_level() const noexcept { return mates.empty() ? 0 : mates[0].level; }
  std::vector<bool> is_mate;
  // [ranks] what it sends comes here, maybe by others, and it is I who writes it down.
  std::vector<bool> is_served;
  // [ranks] who passes on the words of each towards this node: itself, if it is of this node.
  std::vector<int> last_hop;
  // [ranks] the mate by whom I reach each, as its place in `mates`; -1: none is needed, or there.
  std::vector<int> next_hop;
  // [ranks] the lowest rank of the group that is served by that mate; of mine, of my node.
  std::vector<int> subtree;
};

}  // namespace ferry::internal
