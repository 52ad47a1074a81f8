// LocalWork: what ranks and nodes do with rows beside sending them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/input.h"
#include "plan/merged_tasks.h"
#include "plan/resources.h"

namespace ferry::internal {

class LocalWork {
 public:
  LocalWork(const BuildInput& input, Resources& resources) : input_(input), resources_(resources) {}

  // A rank's tokens, or the rows of its experts, brought into order, for so many equal ranks.
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
