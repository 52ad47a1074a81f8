// HopWays: the hops of forests as tasks that wait for each other. All hops that go to one node of a
// forest over equal passages are one task, so that the longest way of bytes is found, but no load.
#pragma once

#include <utility>
#include <vector>

#include "plan/forest.h"
#include "plan/resources.h"

namespace ferry::internal {

class HopWays {
 public:
  // What hops use, of equal resources one: [passages] but for the link, and [kinds of links] the
  // link; -1: none.
  struct HopUses {
    const std::vector<std::vector<Use>>& passages;
    const std::vector<int>& links;
  };
  HopWays(const Graph& graph, const Resources& resources, const HopUses& uses, Half half)
      : graph_(graph), resources_(resources), uses_(uses), half_(half) {}

  void add(const WeighedForest& forest);

  const std::vector<Task>& tasks() const noexcept { return tasks_; }
  // [tasks]: Resources::index().
  const std::vector<std::size_t>& passages() const noexcept { return passages_; }

 private:
  using Levels = std::vector<std::pair<int, std::vector<int>>>;  // tasks, by the levels of passages

  void add_dispatch(int node);
  void add_combine(int node);
  void add_own(int node, const std::vector<int>& after, std::vector<int>& added);
  int add_task(int node, bool own, int outermost, std::vector<int> after);
  int level(int node, int child) const;
  bool moves(int node) const { return forest_->weights[node].bytes[half_] > 0; }
  const Forest::Node& node_at(int node) const { return forest_->forest->nodes()[node]; }

  const Graph& graph_;
  const Resources& resources_;
  const HopUses uses_;
  const Half half_;
  const WeighedForest* forest_ = nullptr;
  // [nodes] dispatch: those that bring what a node gets; combine: its own, passed on.
  std::vector<Levels> passed_;
  std::vector<std::vector<int>> before_;  // [nodes] combine: of the hops behind
  std::vector<Task> tasks_;
  std::vector<std::size_t> passages_;
};

}  // namespace ferry::internal
