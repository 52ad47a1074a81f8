// Forest: the trees of all sources over one way, in which subtrees that are equal stand once, so
// that millions of hops are a few ten thousand nodes. Called by totals.h; calls graph.h and
// routing.h.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "plan/graph.h"
#include "plan/routing.h"

namespace ferry::internal {

class Forest {
 public:
  // The hop to a rank over a kind of link, and all hops behind it.
  struct Node {
    int to = 0, kind = 0;
    std::vector<int> children = {};
    double sources = 0;        // how many have it in their trees
    double start_us = 0;       // dispatch: when its first byte can move, at the earliest ..
    double last_start_us = 0;  // .. and at the latest
    std::uint32_t levels = 0;  // where sources send straight: bit i for Graph::outermost_parted() i
    std::int64_t num_behind = 1;  // ranks: its own, and of the hops behind
    Routing::Wanted wanted = {};  // by them
  };

  // Throws where the trees have too little in common.
  Forest(const Graph& graph, const Routing& routing, const std::vector<bool>& closed);

  // Children before parents.
  const std::vector<Node>& nodes() const noexcept { return nodes_; }
  // The hops from a source itself.
  std::span<const int> of(int source) const {
    return {roots_.data() + first_[source], roots_.data() + first_[source + 1]};
  }
  // Nodes whose rank passes on.
  const std::vector<int>& passing_on(int rank) const { return passing_on_[rank]; }

 private:
  struct Tree;

  void add_tree(int source, const std::vector<bool>& closed, Tree& tree);
  int& find(int rank, int kind, const Tree& tree);
  int add_node(int rank, int kind, const Tree& tree);
  void set_starts();
  void set_wanted(const Routing& routing);

  const Graph& graph_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> keys_;  // [nodes]: any numbers, but all different
  std::vector<int> roots_;
  std::vector<std::size_t> first_ = {0};  // [sources + 1]: into roots_
  std::vector<std::vector<int>> passing_on_;
  std::vector<int> last_hops_;                    // [ranks, kinds]: nodes without children
  std::unordered_map<std::uint64_t, int> known_;  // all others
  std::int64_t num_behind_ = 0;                   // all nodes
};

}  // namespace ferry::internal
