// AllToAll: one row per (token, expert). Counts by MPI_Alltoall, rows sorted by expert into a send
// buffer, MPI_Alltoallv, blocks moved to expert-major order; combine takes the same steps back and
// sums at the source. Called by mpi_bench.cc.
#pragma once

#include <cstddef>
#include <vector>

#include "mpi_job.h"

namespace ferry::bench {

class AllToAll {
 public:
  explicit AllToAll(const Job& job);

  void dispatch();
  void combine();  // identity experts: the expert-major rows are the outputs

  // One sum at the source: all k entries belong to group 0.
  static int sum_group(const Job&, int) noexcept { return 0; }

 private:
  void exchange_counts();
  void sort_by_expert();
  void to_expert_major();

  const Job& job_;
  MPI_Datatype row_type_;
  Traffic traffic_;
  std::vector<int> sent_of_expert_;           // [experts]
  std::vector<int> received_of_;              // [source, local expert]
  std::vector<std::size_t> place_;            // [tokens, top_k] in sorted_
  std::vector<std::size_t> next_;             // scratch: the next free place of each expert
  std::vector<std::size_t> expert_major_of_;  // [source, local expert]: first row of the block
  std::vector<void*> copies_;                 // scratch: the places of one token
  std::vector<const void*> terms_;            // scratch: the rows of one sum
  Rows sorted_, received_, expert_rows_;
};

}  // namespace ferry::bench
