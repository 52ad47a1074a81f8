// Forest: over which links the tokens of some sources reach the ranks that want them: a tree of
// shortest ways for each source, in which the tokens of combine go back. Subtrees that are equal
// stand once, so that millions of hops are a few ten thousand nodes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "plan/graph.h"
#include "plan/routing.h"
#include "traffic/tree_walk.h"

namespace ferry::internal {

enum Half { kDispatch, kCombine };

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
  Forest(const Graph& graph, const Routing& routing, std::vector<int> sources,
         const std::vector<bool>& closed);

  const std::vector<int>& sources() const noexcept { return sources_; }

  // Children before parents.
  const std::vector<Node>& nodes() const noexcept { return nodes_; }
  // The hops from sources()[index] itself.
  std::span<const int> of(std::size_t index) const {
    return {roots_.data() + first_[index], roots_.data() + first_[index + 1]};
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
  const std::vector<int> sources_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> keys_;  // [nodes]: any numbers, but all different
  std::vector<int> roots_;
  std::vector<std::size_t> first_ = {0};  // [sources + 1]: into roots_
  std::vector<std::vector<int>> passing_on_;
  std::vector<int> last_hops_;                    // [ranks, kinds]: nodes without children
  std::unordered_map<std::uint64_t, int> known_;  // all others
  std::int64_t num_behind_ = 0;                   // all nodes
};

// What one source's tokens put on a node's hop; combine takes it the other way.
struct Weight {
  std::array<double, 2> bytes = {};  // [halves]
  double combine_start_us = 0;       // when the first byte of its combine can move
};
// A forest, and what its nodes carry of a strategy.
struct WeighedForest {
  const Forest* forest = nullptr;
  std::vector<Weight> weights = {};  // [nodes]
};
// Its way gets a share of the tokens.
WeighedForest weigh(const Graph& graph, const Forest& forest, const Traffic& traffic,
                    TokenCopies copies, double share);

}  // namespace ferry::internal
