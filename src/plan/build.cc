#include "plan/build.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "plan/local_work.h"
#include "plan/merged_tasks.h"
#include "plan/resources.h"
#include "plan/tree_tasks.h"

namespace ferry::internal {

namespace {

// A hop in the tree of a source.
struct TreeHop {
  Hop hop;
  int node = 0;  // the index of its node in the forest
  // The index of the earlier hop that brought these tokens. -1: they are tokens of the source
  // itself.
  int parent = -1;
  Weight weight = {};
  std::int64_t count = 1;  // number of equal hops
};

// Lists the hops of a source, parents before children. The order is layer by layer, and in a layer
// hops over inner links come first. This is the order in which Graph::ways finds them.
std::vector<TreeHop> hops_of(const Graph& graph, const WeighedForest& weighed, std::size_t index) {
  const Forest& forest = *weighed.forest;
  std::vector<int> inwards(graph.num_kinds());
  for (int i = 0; i < graph.num_kinds(); ++i) inwards[graph.kinds_inwards()[i]] = i;
  std::vector<TreeHop> hops;
  const auto add = [&](int from, int node, int parent) {
    const Forest::Node& to = forest.nodes()[node];
    hops.push_back({.hop = {.from = from, .to = to.to, .kind = to.kind, .own = parent < 0},
                    .node = node,
                    .parent = parent,
                    .weight = weighed.weights[node]});
  };
  for (const int root : forest.of(index)) add(forest.sources()[index], root, -1);
  for (std::size_t begin = 0, end = hops.size(); begin < end; begin = end, end = hops.size()) {
    std::stable_sort(hops.begin() + begin, hops.end(), [&](const TreeHop& a, const TreeHop& b) {
      return inwards[a.hop.kind] > inwards[b.hop.kind];
    });
    for (std::size_t i = begin; i < end; ++i) {
      const auto [from, node] = std::pair{hops[i].hop.to, hops[i].node};
      for (const int child : forest.nodes()[node].children) add(from, child, static_cast<int>(i));
    }
  }
  return hops;
}

bool is_equal(const TreeHop& hop, const TreeHop& other) {
  const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(a, b); };
  return hop.hop.kind == other.hop.kind && hop.parent == other.parent &&
         near(hop.weight.bytes[kDispatch], other.weight.bytes[kDispatch]) &&
         near(hop.weight.bytes[kCombine], other.weight.bytes[kCombine]);
}

// Merges the hops to ranks that look equal from the source. Sets `equal` to false if such hops
// differ.
std::vector<TreeHop> merged(const Classes& classes, int source, const std::vector<TreeHop>& hops,
                            bool& equal) {
  std::map<std::uint64_t, int> known;
  std::vector<TreeHop> merged;
  std::vector<int> place(hops.size());
  for (std::size_t i = 0; i < hops.size(); ++i) {
    TreeHop hop = hops[i];
    if (hop.parent >= 0) hop.parent = place[hop.parent];
    const auto [found, is_new] =
        known.try_emplace(classes.seen(source, hop.hop.to), static_cast<int>(merged.size()));
    place[i] = found->second;
    if (is_new) {
      merged.push_back(hop);
    } else {
      equal = equal && is_equal(hop, merged[place[i]]);
      ++merged[place[i]].count;
    }
  }
  return merged;
}

class Builder {
 public:
  Builder(const BuildInput& input, TokenCopies copies, const std::vector<WeighedForest>& forests)
      : input_(input),
        copies_(copies),
        forests_(forests),
        resources_(input.graph, input.classes, input.traffic.row_bytes, input.chunks),
        local_(input, resources_) {}

  SchedulePair run() {
    SchedulePair pair;
    if (input_.graph.num_kinds() > 0)
      add_over_links(pair);
    else
      add_over_tree(pair);
    const Classes& classes = input_.classes;
    for (int i = 0; i < classes.count(); ++i) {
      local_.reorder_rows(classes.first[i], classes.size[i], dispatch_, dispatch_last_);
      local_.reorder_tokens(classes.first[i], classes.size[i], combine_, combine_last_);
    }
    local_.copy_rows(dispatch_, combine_);
    pair.classes_hold = equal_ && dispatch_.finish(resources_.list(), pair.dispatch);
    pair.classes_hold = combine_.finish(resources_.list(), pair.combine) && pair.classes_hold;
    pair.kinds = resources_.kinds();
    return pair;
  }

 private:
  // Adds the hops of the first rank of each class, which represents the class.
  void add_over_links(SchedulePair& pair) {
    const Classes& classes = input_.classes;
    for (int i = 0; i < classes.count(); ++i) {
      const std::int64_t ranks = classes.size[i];
      const int source = classes.first[i];
      const int before_dispatch = local_.reorder_tokens(source, ranks, dispatch_, {});
      const int before_combine = local_.reorder_rows(source, ranks, combine_, {});
      for (const WeighedForest& forest : forests_) {
        const std::vector<TreeHop> hops =
            merged(classes, source, hops_of(input_.graph, forest, i), equal_);
        add_dispatch(hops, ranks, before_dispatch);
        add_combine(hops, ranks, before_combine);
        count_memory(*forest.forest, hops, ranks);
      }
    }
    for (int i = 0; i < classes.count(); ++i) {
      const double size = static_cast<double>(classes.size[i]);
      pair.received_bytes = std::max(pair.received_bytes, received_[i] / size);
      pair.staged_bytes = std::max(pair.staged_bytes, staged_[i] / size);
    }
  }

  void add_over_tree(SchedulePair& pair) {
    std::vector<int> before_dispatch, before_combine;
    const auto keep = [](int task, std::vector<int>& tasks) {
      if (task >= 0) tasks.push_back(task);
    };
    for (int i = 0; i < input_.classes.count(); ++i) {
      const int rank = input_.classes.first[i];
      keep(local_.reorder_tokens(rank, input_.classes.size[i], dispatch_, {}), before_dispatch);
      keep(local_.reorder_rows(rank, input_.classes.size[i], combine_, {}), before_combine);
    }
    const TreeTasks tree(
        input_, tree_steps(input_.graph.tree(), input_.traffic, input_.routing.demand(), copies_),
        resources_);
    dispatch_last_ = tree.add_dispatch(dispatch_, before_dispatch);
    combine_last_ = tree.add_combine(combine_, before_combine);
    std::tie(pair.received_bytes, pair.staged_bytes) = tree.memory();
  }

  // Adds the task of a hop, which waits for the earlier tasks `after`. A hop without bytes adds no
  // task and returns -1.
  int add(const TreeHop& hop, Half half, std::int64_t ranks, std::vector<int> after) {
    const double bytes = hop.weight.bytes[half];
    if (bytes <= 0) return -1;
    const Machine::Link& link = input_.graph.link(hop.hop.kind);
    const int task = tasks(half).add({.what = link.name + (hop.hop.own ? "" : ", passed on"),
                                      .bytes = bytes,
                                      .latency_us = link.latency_us,
                                      .uses = resources_.of(hop.hop, half == kCombine, bytes),
                                      .after = std::move(after)},
                                     ranks * hop.count);
    (half == kDispatch ? dispatch_last_ : combine_last_).push_back(task);
    return task;
  }
  MergedTasks& tasks(Half half) { return half == kDispatch ? dispatch_ : combine_; }

  void add_dispatch(const std::vector<TreeHop>& hops, std::int64_t ranks, int first) {
    std::vector<int> tasks(hops.size(), -1);
    for (std::size_t i = 0; i < hops.size(); ++i) {
      const int before = hops[i].parent < 0 ? first : tasks[hops[i].parent];
      tasks[i] =
          add(hops[i], kDispatch, ranks, before < 0 ? std::vector<int>{} : std::vector{before});
    }
  }

  void add_combine(const std::vector<TreeHop>& hops, std::int64_t ranks, int first) {
    std::vector<std::vector<int>> before(hops.size());
    for (std::size_t i = hops.size(); i-- > 0;) {
      if (first >= 0) before[i].push_back(first);
      const int task = add(hops[i], kCombine, ranks, std::move(before[i]));
      if (task >= 0 && hops[i].parent >= 0) before[hops[i].parent].push_back(task);
    }
  }

  // Counts the bytes that a rank receives. Bytes for its own experts are received; bytes that it
  // passes on are staged.
  void count_memory(const Forest& forest, const std::vector<TreeHop>& hops, std::int64_t ranks) {
    received_.resize(input_.classes.count());
    staged_.resize(input_.classes.count());
    for (const TreeHop& hop : hops) {
      std::vector<double>& bytes = forest.nodes()[hop.node].children.empty() ? received_ : staged_;
      bytes[input_.classes.of[hop.hop.to]] +=
          hop.weight.bytes[kDispatch] * static_cast<double>(ranks * hop.count);
    }
  }

  const BuildInput& input_;
  const TokenCopies copies_;
  const std::vector<WeighedForest>& forests_;
  Resources resources_;
  LocalWork local_;
  MergedTasks dispatch_, combine_;
  std::vector<int> dispatch_last_, combine_last_;
  std::vector<double> received_, staged_;  // [classes]
  bool equal_ = true;
};

}  // namespace

SchedulePair build(const BuildInput& input, TokenCopies copies,
                   const std::vector<WeighedForest>& forests) {
  return Builder(input, copies, forests).run();
}

}  // namespace ferry::internal
