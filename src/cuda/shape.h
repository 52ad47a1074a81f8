// CudaShape and CudaWindow: what kernels know of an exchange, and where everything lies in a rank's
// window of device memory. Plain data, passed to kernels by value. All offsets are made in
// window.cc, by accumulation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ferry/types.h"

namespace ferry::internal {

// A column of the count matrix is an expert; kRankMajor has a column for each rank behind them,
// which counts rows (routing/placement.h).
struct CudaShape {
  // Device memory: the rank of an expert, its place among that rank's; the experts of ranks, those
  // of rank r at experts_of[first_of[r]].
  struct Experts {
    const std::int32_t *owner, *local, *first_of, *experts_of;
  };

  int num_ranks, rank, num_experts, top_k;
  Layout layout;
  DataType dtype;  // of tokens
  Wire wire;
  std::int64_t hidden, alignment, expert_capacity;
  std::int64_t row_capacity;              // of a buffer; kPadded: of all its experts
  std::int64_t row_bytes, scale_columns;  // of a received row
  bool zero_gaps;
  Experts experts;

  constexpr bool rank_major() const { return layout == Layout::kRankMajor; }
  constexpr int count_row_size() const { return num_experts + (rank_major() ? num_ranks : 0); }
  constexpr DataType wire_dtype() const { return wire == Wire::kNone ? dtype : DataType::kFp8E4m3; }
};

// What a rank tells each other rank with its counts: where its rows go, and whether it refused its
// call.
struct CudaCountRecord {
  std::int64_t entry, value;  // of a refused top-k id: token * top_k + k, and the id
  std::int32_t code;          // Code of a refused call, else kOk
  std::int32_t buffer;        // which receives
};

// And with its outputs: where they lie in its window.
struct CudaOutputRecord {
  std::int64_t offset, hidden;
  std::int32_t code, dtype;
};

// Offsets in a window. Flags are 64 bits and only grow; flag i of an array has one writer, rank i.
// What they publish is there twice, for odd and even numbers of operations: nobody reaches the
// second operation after one before all have read the first.
struct CudaWindow {
  // In a receive buffer.
  struct Buffer {
    std::size_t rows, scales, sources, weights, topk_ids;
    std::size_t bytes;
  };

  std::size_t counts_flags, rows_flags, outputs_flags, done_flags, abort_flags;  // [ranks]
  std::size_t count_records[2], output_records[2];                               // [ranks]
  std::size_t counts[2];     // [ranks, count_row_size] int32
  std::size_t first_buffer;  // [depth]
  Buffer buffer;
  std::size_t first_output, output_bytes;  // [depth]
  std::size_t bytes;
};

}  // namespace ferry::internal
