// Nodes: which ranks share memory with which, and who serves whom across the border. Pure data,
// equal on all ranks but for `rank`. Made from what the rendezvous found; read by group, routing
// and exchange.
#pragma once

#include <span>
#include <vector>

namespace ferry::internal {

// The mate in a group of ranks of the one at `position` in its own: the same position, counted
// round where the groups are uneven. -1: the group is empty.
int mate_at(std::span<const int> ranks, int position) noexcept;

class Nodes {
 public:
  // `node_of` [ranks], nodes numbered from 0.
  Nodes(std::vector<int> node_of, int rank);

  int count() const noexcept { return static_cast<int>(ranks_.size()); }
  int num_ranks() const noexcept { return static_cast<int>(node_of_.size()); }
  bool one() const noexcept { return ranks_.size() == 1; }
  int mine() const noexcept { return mine_; }
  int node_of(int rank) const noexcept { return node_of_[rank]; }
  bool here(int rank) const noexcept { return node_of_[rank] == mine_; }
  // Ascending.
  const std::vector<int>& ranks_of(int node) const noexcept { return ranks_[node]; }
  const std::vector<int>& ranks_here() const noexcept { return ranks_[mine_]; }
  // Of a rank among those of its node.
  int position(int rank) const noexcept { return position_[rank]; }
  int most_ranks() const noexcept;

 private:
  std::vector<int> node_of_, position_;
  std::vector<std::vector<int>> ranks_;
  int mine_;
};

}  // namespace ferry::internal
