// TreeTasks: the hops of a tree (tree_walk.h) as tasks, one for all hops of a step, so that any
// number of ranks, equal or not, makes a few.
#pragma once

#include <utility>
#include <vector>

#include "plan/input.h"
#include "plan/merged_tasks.h"
#include "plan/resources.h"
#include "traffic/tree_walk.h"

namespace ferry::internal {

class TreeTasks {
 public:
  TreeTasks(const BuildInput& input, std::vector<TreeStep> steps, Resources& resources);

  // Behind tasks that bring rows into order. Returns all.
  std::vector<int> add_dispatch(MergedTasks& tasks, const std::vector<int>& first) const;
  std::vector<int> add_combine(MergedTasks& tasks, const std::vector<int>& first) const;
  // Bytes of the rank with most: of its own rows, and of those that it passes on.
  std::pair<double, double> memory() const;

 private:
  using Loads = std::vector<std::vector<TreeLoad>>;  // [steps][what is loaded]

  void add_level(int level);
  void add_engine(int engine);
  // Between nodes every byte takes time of the processors at both of its ends.
  void add_processors();
  // Equally loaded resources become one.
  void add(const LoadKind& kind, const Loads& loads, bool both_directions);
  Task task(std::size_t step, double PairBytes::*bytes) const;
  std::vector<int> add_steps(MergedTasks& tasks, const std::vector<int>& first, bool combine) const;

  const BuildInput& input_;
  const Topology& tree_;
  std::vector<TreeStep> steps_;
  struct StepUse {
    int resource;
    PairBytes bytes;  // of one instance
    double instances;
    double cost = 1;
  };
  std::vector<std::vector<StepUse>> uses_;  // [steps]
  Resources& resources_;
};

}  // namespace ferry::internal
