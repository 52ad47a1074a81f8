// TreeTasks: the hops of a tree (tree_walk.h) as tasks. All hops of a step are one task, so that
// the number of tasks does not depend on the number of ranks.
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

  // Add the tasks of all steps and return them. The steps wait for the tasks `first`, which reorder
  // rows.
  std::vector<int> add_dispatch(MergedTasks& tasks, const std::vector<int>& first) const;
  std::vector<int> add_combine(MergedTasks& tasks, const std::vector<int>& first) const;
  // The bytes that a rank receives for its own experts, and those that it passes on. Each is the
  // maximum over ranks.
  std::pair<double, double> memory() const;

 private:
  using Loads = std::vector<std::vector<TreeLoad>>;  // [steps][links or ranks]

  void add_level(int level);
  void add_engine(int engine);
  // Adds the processors. Every byte between nodes takes time of the processors at both ends.
  void add_processors();
  // Adds a resource for each set of links or ranks with equal loads.
  void add(const LoadKind& kind, const Loads& loads, bool both_directions);
  Task task(std::size_t step, double PairBytes::*bytes) const;
  std::vector<int> add_steps(MergedTasks& tasks, const std::vector<int>& first, bool combine) const;

  const BuildInput& input_;
  const Topology& tree_;
  std::vector<TreeStep> steps_;
  struct StepUse {
    int resource;
    PairBytes bytes;  // the bytes of one instance
    double instances;
    double cost = 1;
  };
  std::vector<std::vector<StepUse>> uses_;  // [steps]
  Resources& resources_;
};

}  // namespace ferry::internal
