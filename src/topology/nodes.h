// Nodes: which ranks share memory with which, and who serves whom across the border. Pure data,
// equal on all ranks but for `rank`. Made from what the rendezvous found; read by group, routing
// and exchange.
#pragma once

#include <vector>

namespace ferry::internal {

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

// Border: who serves whom between my node and the others, among the ranks that take part.
struct Border {
  Border() = default;
  // `taking_part` [ranks]. Positions are counted among those that do; a rank that does not keeps
  // its own.
  Border(const Nodes& nodes, int rank, const std::vector<bool>& taking_part);

  // Who takes my messages, in each other node where somebody takes part.
  struct Mate {
    int node, rank;
  };
  std::vector<Mate> mates;
  std::vector<bool> is_mate, is_client;  // [ranks] takes my messages; I take its
  // [ranks] who of this node writes down the words of each: itself, if it is of this node.
  std::vector<int> via;
};

}  // namespace ferry::internal
