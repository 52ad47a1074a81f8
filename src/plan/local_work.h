// LocalWork: what ranks and nodes do with rows beside sending them. Called by build.cc
// and tree_tasks.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/build.h"
#include "plan/merged_tasks.h"

namespace ferry::internal {

// Ranks that share processors, and how many such nodes are alike.
struct Node {
  std::vector<int> ranks;
  std::int64_t alike = 1;
};
std::vector<Node> nodes_of(const BuildInput& input);

class LocalWork {
 public:
  LocalWork(const BuildInput& input, Resources& resources) : input_(input), resources_(resources) {}

  // A rank's tokens, or the rows of its experts, brought into order, for so many ranks alike.
  // Returns the task; -1 where the machine has no engine for it.
  int reorder_tokens(int rank, std::int64_t ranks, MergedTasks& tasks, std::vector<int> after);
  int reorder_rows(int rank, std::int64_t ranks, MergedTasks& tasks, std::vector<int> after);

  // Every row of a node is written, and read again, by its processors.
  void copy_rows(MergedTasks& dispatch, MergedTasks& combine);

 private:
  struct RowSet {
    double tokens;  // once for each rank that gets them
    double bytes;
  };
  void copy_rows_of(MergedTasks& tasks, const Machine::Copying& cost, const Node& node,
                    const RowSet& set);

  const BuildInput& input_;
  Resources& resources_;
};

}  // namespace ferry::internal
