#include "plan/forest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ferry/status.h"
#include "plan/hash.h"

namespace ferry::internal {

namespace {

// The limit for the sum of Node::num_behind. A ring of 512 ranks reaches it.
constexpr std::int64_t kMostBehind = std::int64_t{1} << 26;

}  // namespace

// The tree of one source during its construction.
struct Forest::Tree {
  std::vector<int> node, first_child, next_sibling;  // [ranks]; -1: none
  std::vector<std::uint64_t> key;  // [ranks]: a hash of the children, in any order

  explicit Tree(int ranks) : node(ranks), first_child(ranks), next_sibling(ranks), key(ranks) {}
};

Forest::Forest(const Graph& graph, const Routing& routing, std::vector<int> sources,
               const Graph::WayRule& rule)
    : graph_(graph),
      sources_(std::move(sources)),
      passing_on_(graph.num_ranks()),
      last_hops_(std::size_t(graph.num_ranks()) * graph.num_kinds(), -1) {
  Tree tree(graph.num_ranks());
  for (const int source : sources_) add_tree(source, rule, tree);
  set_starts();
  set_wanted(routing);
}

// Makes the nodes of a tree, from the last hops to the first.
void Forest::add_tree(int source, const Graph::WayRule& rule, Tree& tree) {
  const Graph::Ways ways = graph_.ways(source, rule);
  std::ranges::fill(tree.first_child, -1);
  std::ranges::fill(tree.key, 0);
  for (std::size_t i = ways.order.size(); i-- > 1;) {
    const int rank = ways.order[i];
    const auto& [from, kind, depth] = ways.reached[rank];
    int& node = find(rank, kind, tree);
    if (node < 0) node = add_node(rank, kind, tree);
    tree.node[rank] = node;
    tree.next_sibling[rank] = tree.first_child[from];
    tree.first_child[from] = rank;
    tree.key[from] += keys_[node];
  }
  for (int child = tree.first_child[source]; child >= 0; child = tree.next_sibling[child]) {
    Node& node = nodes_[tree.node[child]];
    roots_.push_back(tree.node[child]);
    node.sources += 1;
    node.levels |= std::uint32_t{1} << graph_.outermost_parted(source, child);
  }
  first_.push_back(roots_.size());
}

// Finds the node with this rank, link and children. Children are compared by a hash of 64 bits.
int& Forest::find(int rank, int kind, const Tree& tree) {
  const std::size_t own = std::size_t(rank) * graph_.num_kinds() + kind;
  if (tree.first_child[rank] < 0) return last_hops_[own];
  return known_.try_emplace(mixed(own) + tree.key[rank], -1).first->second;
}

int Forest::add_node(int rank, int kind, const Tree& tree) {
  const int id = static_cast<int>(nodes_.size());
  Node node{.to = rank, .kind = kind};
  for (int child = tree.first_child[rank]; child >= 0; child = tree.next_sibling[child]) {
    node.children.push_back(tree.node[child]);
    node.num_behind += nodes_[tree.node[child]].num_behind;
  }
  if (!node.children.empty()) passing_on_[rank].push_back(id);
  num_behind_ += node.num_behind;
  if (num_behind_ > kMostBehind)
    throw Error(Code::kInvalidArgument,
                fmt::format("{} ranks that all differ pass tokens on over too many different ways, "
                            "with more than {} ranks behind them: give all groups equally many "
                            "ranks and all ranks equally many experts, or plan fewer ranks",
                            graph_.num_ranks(), kMostBehind));
  nodes_.push_back(std::move(node));
  keys_.push_back(mixed(~std::uint64_t(id)));
  return id;
}

void Forest::set_starts() {
  const auto latency = [&](const Node& node) { return graph_.link(node.kind).latency_us; };
  for (Node& node : nodes_) {
    node.start_us = node.sources > 0 ? latency(node) : std::numeric_limits<double>::infinity();
  }
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    for (const int child : nodes_[i].children) {
      Node& behind = nodes_[child];
      behind.sources += nodes_[i].sources;
      behind.start_us = std::min(behind.start_us, nodes_[i].start_us + latency(behind));
    }
  }
}

void Forest::set_wanted(const Routing& routing) {
  std::vector<Routing::Ranks> behind(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    behind[i] = routing.of(node.to);
    node.wanted.touched_alone = routing.touched(behind[i]);
    for (const int child : node.children) {
      routing.add(behind[i], behind[child]);
      node.wanted.touched_alone += nodes_[child].wanted.touched_alone;
    }
    node.wanted.touched = routing.touched(behind[i]);
    node.wanted.rows = routing.rows(behind[i]);
  }
}

WeighedForest weigh(const Graph& graph, const Forest& forest, const Traffic& traffic,
                    TokenCopies copies, double share) {
  const double tokens = share * static_cast<double>(traffic.tokens);
  std::vector<Weight> weights;
  for (const Forest::Node& node : forest.nodes()) {
    double out = 1;
    if (copies == TokenCopies::kPerRank) out = node.wanted.touched_alone;
    if (copies == TokenCopies::kPerGroup) out = node.wanted.touched;
    const double sums = copies == TokenCopies::kPerRank ? out : node.wanted.touched;
    const double rows = traffic.row_per_rank ? node.wanted.touched_alone : node.wanted.rows;
    Weight weight{.bytes = {tokens * traffic.row_bytes * out,
                            tokens * (traffic.exact ? traffic.output_bytes * rows
                                                    : traffic.sum_bytes * sums)}};
    for (const int child : node.children) {
      if (weights[child].bytes[kCombine] > 0)
        weight.combine_start_us =
            std::max(weight.combine_start_us, weights[child].combine_start_us);
    }
    weight.combine_start_us += graph.link(node.kind).latency_us;
    weights.push_back(weight);
  }
  return {.forest = &forest, .weights = std::move(weights)};
}

}  // namespace ferry::internal
