// Forest: the links over which the tokens of some sources reach the ranks that want them. Each
// source has a tree of shortest ways; a combine takes the same ways back. Equal subtrees are stored
// once, so that millions of hops need only some ten thousand nodes.
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
  // The hop to a rank over a kind of link, with all hops behind it.
  struct Node {
    int to = 0, kind = 0;
    std::vector<int> children = {};
    double sources = 0;  // the number of sources that have this node in their trees
    double start_us =
        0;  // dispatch: the earliest time at which the first byte of this hop can move
    // A bit for each level. Bit i is set if a source uses this node as a first hop, and i is the
    // outermost level at which the two ends of the hop are in different groups.
    std::uint32_t levels = 0;
    std::int64_t num_behind = 1;  // the number of ranks that this hop and the hops behind it reach
    Routing::Wanted wanted = {};  // the demand of these ranks
  };

  // Throws if the trees have too few equal subtrees, so that the forest would be too large.
  Forest(const Graph& graph, const Routing& routing, std::vector<int> sources,
         const Graph::WayRule& rule);

  const std::vector<int>& sources() const noexcept { return sources_; }

  // The nodes, children before their parents.
  const std::vector<Node>& nodes() const noexcept { return nodes_; }
  // The first hops from sources()[index].
  std::span<const int> of(std::size_t index) const {
    return {roots_.data() + first_[index], roots_.data() + first_[index + 1]};
  }
  // The nodes that have children and whose receiver is `rank`.
  const std::vector<int>& passing_on(int rank) const { return passing_on_[rank]; }

 private:
  struct Tree;

  void add_tree(int source, const Graph::WayRule& rule, Tree& tree);
  int& find(int rank, int kind, const Tree& tree);
  int add_node(int rank, int kind, const Tree& tree);
  void set_starts();
  void set_wanted(const Routing& routing);

  const Graph& graph_;
  const std::vector<int> sources_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> keys_;  // [nodes]: a different number for each node
  std::vector<int> roots_;
  std::vector<std::size_t> first_ = {0};  // [sources + 1]: indices into roots_
  std::vector<std::vector<int>> passing_on_;
  std::vector<int> last_hops_;                    // [ranks, kinds]: the nodes that have no children
  std::unordered_map<std::uint64_t, int> known_;  // the nodes that have children, by their keys
  std::int64_t num_behind_ = 0;                   // the sum of Node::num_behind
};

// The load of one source on the hop of a node. A combine takes the hop in the other direction.
struct Weight {
  std::array<double, 2> bytes = {};  // [halves]
  double combine_start_us = 0;       // the earliest time at which its first byte can move
};
// A forest with the loads of one strategy.
struct WeighedForest {
  const Forest* forest = nullptr;
  std::vector<Weight> weights = {};  // [nodes]
};
// Computes the loads of a forest. `share` is the share of a source's tokens that take the path of
// this forest.
WeighedForest weigh(const Graph& graph, const Forest& forest, const Traffic& traffic,
                    TokenCopies copies, double share);

}  // namespace ferry::internal
