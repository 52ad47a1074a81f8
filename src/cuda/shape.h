// CudaShape and CudaWindow: the settings of an exchange that kernels use, and the offsets in the
// window of device memory of a rank. Plain data, passed to kernels by value. window.cc makes all
// offsets, by accumulation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ferry/types.h"

namespace ferry::internal {

// A column of the count matrix is an expert; kRankMajor has a column for each rank behind them,
// which counts rows (routing/placement.h).
struct CudaShape {
  // Device memory. Expert e is expert local[e] of rank owner[e]. The experts of rank r begin at
  // experts_of[first_of[r]].
  struct Experts {
    const std::int32_t *owner, *local, *first_of, *experts_of;
  };

  int num_ranks, rank, num_experts, top_k;
  Layout layout;
  DataType dtype;  // type of tokens
  Wire wire;
  std::int64_t hidden, alignment, expert_capacity;
  std::int64_t row_capacity;              // rows of a buffer; kPadded: of all its experts together
  std::int64_t row_bytes, scale_columns;  // bytes and scale columns of a received row
  bool zero_gaps;
  Experts experts;

  constexpr bool rank_major() const { return layout == Layout::kRankMajor; }
  constexpr int count_row_size() const { return num_experts + (rank_major() ? num_ranks : 0); }
  constexpr DataType wire_dtype() const { return wire == Wire::kNone ? dtype : DataType::kFp8E4m3; }
};

// What a rank sends to every rank with its counts: the buffer in which it receives, and whether it
// refused its call.
struct CudaCountRecord {
  std::int64_t entry, value;  // a refused top-k id: its entry, token * top_k + k, and the id
  std::int32_t code;          // Code of a refused call, else kOk
  std::int32_t buffer;        // the buffer that receives
};

// What a rank sends to every rank about its outputs: their offset in its window, their width and
// type, and whether it refused its call.
struct CudaOutputRecord {
  std::int64_t offset, hidden;
  std::int32_t code, dtype;
};

// Offsets in a window. Flags have 64 bits and only grow; flag i of an array has one writer, rank i.
// The records and counts that flags publish exist twice, for odd and for even operation numbers: no
// rank writes those of operation n + 2 before all ranks have read those of operation n.
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
