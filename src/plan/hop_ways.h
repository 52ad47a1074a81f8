// HopWays: the hops of forests as tasks that wait for each other. All hops to one node of a forest
// with equal passages are one task. The tasks give the longest way of bytes, but no loads.
#pragma once

#include <utility>
#include <vector>

#include "plan/forest.h"
#include "plan/resources.h"

namespace ferry::internal {

class HopWays {
 public:
  // The resources that hops use. One resource stands for all equal ones. `passages` is [passages]
  // and leaves out the link. `links` is [kinds of links], and -1 means that there is no resource.
  struct HopUses {
    const std::vector<std::vector<Use>>& passages;
    const std::vector<int>& links;
  };
  HopWays(const Graph& graph, const Resources& resources, const HopUses& uses, Half half)
      : graph_(graph), resources_(resources), uses_(uses), half_(half) {}

  void add(const WeighedForest& forest);

  const std::vector<Task>& tasks() const noexcept { return tasks_; }
  // [tasks]: the passage of each task, as Resources::index() numbers it.
  const std::vector<std::size_t>& passages() const noexcept { return passages_; }

 private:
  using Levels = std::vector<std::pair<int, std::vector<int>>>;  // tasks by Passage::outermost

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
  // [nodes]. In a dispatch: the tasks that bring the bytes of a node. In a combine: the tasks with
  // which a node passes bytes on.
  std::vector<Levels> passed_;
  // [nodes]. In a combine: the tasks of the hops behind a node.
  std::vector<std::vector<int>> before_;
  std::vector<Task> tasks_;
  std::vector<std::size_t> passages_;
};

}  // namespace ferry::internal
