// Dedup: one row per (token, distinct rank), with the token's experts and weights beside it. The
// receiver expands rows to expert-major order; combine sums what one rank's experts made of a token
// there, sends one row back, and the source adds over ranks. Called by mpi_bench.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mpi_job.h"

namespace ferry::bench {

class Dedup {
 public:
  explicit Dedup(const Job& job);

  void dispatch();
  void combine();  // identity experts: the expert-major rows are the outputs

  // Sums of each owner first, then over owners ascending.
  static int sum_group(const Job& job, int expert) noexcept { return job.owner(expert); }

 private:
  struct Choice {
    int expert;
    float weight;
  };

  void exchange_counts();
  void gather_rows();
  void place_rows();
  void expand();

  const Job& job_;
  MPI_Datatype row_type_, choices_type_;
  Traffic traffic_;
  std::vector<std::uint64_t> ranks_of_;         // [tokens]: bit r is set when rank r gets a copy
  std::vector<int> next_;                       // scratch: the next free row of each destination
  std::vector<std::size_t> sent_place_;         // of each copy, token by token, ranks ascending
  std::vector<Choice> sent_choices_, choices_;  // [rows, top_k]
  std::vector<std::size_t> expert_place_;       // of each local choice, row by row
  std::vector<std::size_t> next_of_expert_;     // scratch: the next free row of each local expert
  std::vector<void*> copies_;                   // scratch: the places of one row
  std::vector<const void*> terms_;              // scratch: the rows of one sum
  std::vector<float> term_weights_;             // scratch
  Rows sent_, received_, expert_rows_;
};

}  // namespace ferry::bench
