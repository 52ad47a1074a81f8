// The steps of routing/placement.h for many threads: each step is a function of one entry or one
// column and keeps no state. A kernel has a thread for each item. The results equal those of
// placement.
//   1. key_of_entry, find_in_chunk     entries in chunks -> counts of each chunk
//   2. run_chunks                      counts of chunks -> this rank's row of the count matrix
//   3. sum_column, rows_taken          the whole matrix -> this rank's first row in each column
//   4. row_of_entry                    -> the row of each entry
#pragma once

#include <cstdint>

#include "base/round_up.h"
#include "cuda/shape.h"

namespace ferry::internal {

// The entries of one chunk are compared with each other. A chunk has whole tokens only.
inline constexpr int kChunkEntries = 256;
constexpr int tokens_per_chunk(int top_k) { return kChunkEntries / top_k; }
constexpr std::int64_t num_chunks(std::int64_t num_tokens, int top_k) {
  const int tokens = tokens_per_chunk(top_k);
  return (num_tokens + tokens - 1) / tokens;
}

// The column that counts the row of entry k of a token with these experts; -1: the entry has no
// row, or shares the row of an earlier entry.
constexpr std::int32_t key_of_entry(const CudaShape& shape, const std::int32_t* experts, int k) {
  if (experts[k] < 0 || !shape.rank_major()) return experts[k];
  const std::int32_t rank = shape.experts.owner[experts[k]];
  for (int j = 0; j < k; ++j) {
    if (experts[j] >= 0 && shape.experts.owner[experts[j]] == rank) return -1;
  }
  return shape.num_experts + rank;
}

inline constexpr std::int32_t kNoKey = -2;  // the key of places after the last entry of a chunk

// The number of earlier entries of the chunk with the same key, and whether no later entry has it.
struct InChunk {
  std::int32_t rank;
  bool last;
};
constexpr InChunk find_in_chunk(const std::int32_t (&keys)[kChunkEntries], int entry) {
  constexpr int kTogether = 16;  // a loop of a known length is unrolled, and its reads overlap
  const std::int32_t key = keys[entry];
  std::int32_t earlier = 0, later = 0;
  for (int first = 0; first < kChunkEntries; first += kTogether) {
    for (int i = 0; i < kTogether; ++i) {
      const std::int32_t same = keys[first + i] == key ? 1 : 0;
      earlier += first + i < entry ? same : 0;
      later += first + i > entry ? same : 0;
    }
  }
  return {earlier, later == 0};
}

// chunk_counts [chunks, row_size]: the count of each chunk in a column becomes the sum of those of
// the chunks before it. Returns the sum of all. Several counts are read before the first is
// written, to hide the latency of the reads.
constexpr std::int32_t run_chunks(std::int32_t* chunk_counts, std::int64_t chunks, int row_size,
                                  int column) {
  constexpr int kTogether = 8;
  std::int32_t sum = 0;
  std::int32_t* of_column = chunk_counts + column;
  for (std::int64_t first = 0; first < chunks; first += kTogether) {
    std::int32_t counts[kTogether] = {};
    for (int i = 0; i < kTogether; ++i) {
      if (first + i < chunks) counts[i] = of_column[(first + i) * row_size];
    }
    for (int i = 0; i < kTogether; ++i) {
      if (first + i < chunks) of_column[(first + i) * row_size] = sum;
      sum += counts[i];
    }
  }
  return sum;
}

struct ColumnSum {
  std::int32_t before_me, all;
};

// Sums a column of counts [ranks, count_row_size].
constexpr ColumnSum sum_column(const CudaShape& shape, const std::int32_t* counts, int column) {
  ColumnSum sum{0, 0};
  const int row_size = shape.count_row_size();
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    if (rank == shape.rank) sum.before_me = sum.all;
    sum.all += counts[static_cast<std::int64_t>(rank) * row_size + column];
  }
  return sum;
}

// The rows that an expert takes in the buffer of its rank, gaps included.
constexpr std::int64_t rows_taken(const CudaShape& shape, std::int32_t rows) {
  if (shape.layout == Layout::kPadded) return shape.expert_capacity;
  return round_up<std::int64_t, std::int64_t>(rows, shape.alignment);
}

// The most rows that a rank may need in its buffer or, in kPadded, for one expert.
constexpr std::int64_t most_rows(const CudaShape& shape) {
  return shape.layout == Layout::kPadded ? shape.expert_capacity : shape.row_capacity;
}

// A row in the buffer of a rank; rank -1: none.
struct CudaRef {
  std::int32_t rank = -1, row = 0;
};

// The row of an entry. `before` [row_size]: the entries in earlier chunks, by column (run_chunks).
// `next`: the first row of this rank, by column.
constexpr CudaRef row_of_entry(const CudaShape& shape, std::int32_t key, std::int32_t rank_in_chunk,
                               const std::int32_t* before, const std::int32_t* next) {
  if (key < 0) return {};
  const std::int32_t rank = shape.rank_major() ? key - shape.num_experts : shape.experts.owner[key];
  return {rank, next[key] + before[key] + rank_in_chunk};
}

// The number of sent refs of a token whose rank is lower than that of `refs[k]`. The ranks of a
// token's refs differ (kRankMajor).
constexpr int order_of_ref(const CudaRef* refs, int top_k, int k) {
  int before = 0;
  for (int j = 0; j < top_k; ++j)
    before += refs[j].rank >= 0 && refs[j].rank < refs[k].rank ? 1 : 0;
  return before;
}

}  // namespace ferry::internal
