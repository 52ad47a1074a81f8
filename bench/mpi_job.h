// Job: what one MPI rank has to move, and the steps that both algorithms share. Made by
// mpi_bench.cc, used by mpi_a2av.cc and mpi_dedup.cc; routing and tokens are those of `ferry bench`
// for the same seed.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/memory.h"
#include "kernels/kernels.h"

namespace ferry::bench {

struct JobOptions {
  std::string algorithm = "a2av";
  std::int64_t tokens = 128;
  std::int64_t hidden = 7168;
  int top_k = 8;
  int experts = 256;
  std::string routing = "uniform";
  int top_groups = 0;
  int iterations = 0;  // 0: as many as fill about half a second, 20 to 2000, as `ferry bench` does
  int warmup = 5;
  std::uint64_t seed = 1;
};

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
  explicit Job(const JobOptions& options);  // of this rank of MPI_COMM_WORLD

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

// Rows to and from each rank of one alltoallv.
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

// Elements of `bytes` bytes, so that counts of rows fit the int of MPI.
MPI_Datatype element_of(std::size_t bytes);

}  // namespace ferry::bench
