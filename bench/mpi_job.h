// Job: the rows that one MPI rank has to move, and the two algorithms that move them (mpi_a2av.cc,
// mpi_dedup.cc). Routing and tokens are those of `ferry bench` for the same seed.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "tools/bench/memory.h"
#include "tools/bench/options.h"

namespace ferry::bench {

// bf16 rows one after the other, in huge pages that exist.
class Rows {
 public:
  Rows() = default;
  Rows(std::size_t num_rows, std::size_t row_bytes);
  std::byte* operator[](std::size_t row) const noexcept {
    return mapping_.data() + row * row_bytes_;
  }

 private:
  Mapping mapping_;
  std::size_t row_bytes_ = 0;
};

struct Job {
  explicit Job(const Options& options);  // of this rank of MPI_COMM_WORLD

  int owner(int expert) const noexcept { return expert / local_experts; }
  // The k-th expert of a token.
  int expert(std::size_t token, std::size_t k) const noexcept { return experts[token * top_k + k]; }
  float weight(std::size_t token, std::size_t k) const noexcept {
    return weights[token * top_k + k];
  }
  // out = weighted sum of bf16 rows in this order, in float32, rounded once; null weights: all 1.
  void sum_rows(const std::vector<const void*>& rows, const float* row_weights,
                void* sum) const noexcept;

  int rank = 0;
  int num_ranks = 1;
  int local_experts = 1;  // of each rank: rank r has experts r * local_experts and following
  std::size_t num_tokens;
  std::size_t top_k;
  std::size_t row_bytes;
  std::int64_t hidden;
  std::vector<int> experts;    // [tokens, top_k]
  std::vector<float> weights;  // [tokens, top_k]
  Rows tokens;                 // [tokens, hidden]
  Rows out;                    // [tokens, hidden]
};

// The rows that one alltoallv sends to each rank and receives from it.
struct Traffic {
  explicit Traffic(int num_ranks)
      : send_counts(static_cast<std::size_t>(num_ranks)),
        send_begins(send_counts.size() + 1),
        receive_counts(send_counts.size()),
        receive_begins(send_counts.size() + 1) {}

  void find_begins();  // from the counts
  std::size_t num_sent() const { return static_cast<std::size_t>(send_begins.back()); }
  std::size_t num_received() const { return static_cast<std::size_t>(receive_begins.back()); }
  void forth(const void* sent, void* received, MPI_Datatype type) const;
  void back(const void* received, void* sent, MPI_Datatype type) const;

  std::vector<int> send_counts, send_begins, receive_counts, receive_begins;
};

// A datatype of `bytes` bytes, such as a row, so that counts of rows fit the int of MPI.
MPI_Datatype element_of(std::size_t bytes);

// One row per (token, expert): counts by MPI_Alltoall, rows sorted by expert into a send buffer,
// MPI_Alltoallv, blocks moved to expert-major order; combine takes the same steps back and sums at
// the source.
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
  std::vector<const void*> summands_;         // scratch: the rows of one sum
  Rows sorted_, received_, expert_rows_;
};

// One row per (token, distinct rank), with the token's experts and weights beside it: the receiver
// expands rows to expert-major order; combine sums there the results of one rank's experts for a
// token, sends one row back, and the source adds over ranks.
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
  std::vector<const void*> summands_;           // scratch: the rows of one sum
  std::vector<float> summand_weights_;          // scratch
  Rows sent_, received_, expert_rows_;
};

}  // namespace ferry::bench
