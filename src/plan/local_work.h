// LocalWork: the tasks with which ranks and nodes reorder and copy rows.
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

  // Adds the task that reorders a rank's tokens, or the rows of its experts, for `ranks` equal
  // ranks. Returns the task, or -1 if the machine has no engine that reorders.
  int reorder_tokens(int rank, std::int64_t ranks, MergedTasks& tasks, std::vector<int> after);
  int reorder_rows(int rank, std::int64_t ranks, MergedTasks& tasks, std::vector<int> after);

  // Adds the copies of rows: the processors of a node write every row, and read it again.
  void copy_rows(MergedTasks& dispatch, MergedTasks& combine);

 private:
  struct RowSet {
    double tokens;  // a token counts once for each rank that receives it
    double bytes;
  };
  void copy_rows_of(MergedTasks& tasks, const Machine::Copying& cost, const Node& node,
                    const RowSet& set);

  const BuildInput& input_;
  Resources& resources_;
};

}  // namespace ferry::internal
