// Row kernels: copy and weighted sum. They allocate nothing and write no byte outside a row.
// Results have the same bits on every SIMD target (Highway, run-time dispatch): a product is
// rounded, then added, without FMA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ferry/types.h"

namespace ferry::internal {

inline constexpr std::size_t kLineBytes = 64;  // the unit of streaming stores

enum class Stores : std::uint8_t {
  kCached,
  kStreaming,  // non-temporal where the row allows; call stores_fence() before raising a flag
};

// How cached copies and sums go through a row. kInwards: from both ends to the middle. kUpwards:
// from the first byte to the last, where a copy to several rows writes a part of each in turn. The
// results are the same.
enum class RowOrder : std::uint8_t { kInwards, kUpwards };
RowOrder row_order() noexcept;  // the faster one on this processor

// Copies `bytes` from src to dst. Any alignment, any length, no overlap.
void copy_row(void* dst, const void* src, std::size_t bytes, Stores stores) noexcept;

// Copies one row to each of dsts[0..num_dsts): the source is read from memory once.
void copy_row_to_many(void* const* dsts, int num_dsts, const void* src, std::size_t bytes,
                      Stores stores) noexcept;

// Orders this thread's streaming stores before its later stores.
void stores_fence() noexcept;

// Prefetches the beginning of a row that will be read soon.
void prefetch_row(const void* row, std::size_t bytes) noexcept;

inline constexpr int kMaxRows = 64;

// out[h] = round(bias0[h] + bias1[h] + weights[0] * rows[0][h] + weights[1] * rows[1][h] + ...), h
// < hidden. float32, in this order, starting from +0 (+ bias0 + bias1 when given); each product is
// rounded before it is added; weights == nullptr adds the rows as they are. Then one
// round-to-nearest-even to out_type (fp16 overflow gives infinity; NaN stays a quiet NaN with its
// sign: bf16 keeps the top 7 payload bits and sets the quiet bit). The sum of several NaNs is a NaN
// whose payload depends on the processor, as does the sign of the NaN of inf - inf or 0 * inf.
struct ReduceRows {
  const void* const* rows = nullptr;  // num_rows pointers to [hidden] of row_type
  const float* weights = nullptr;     // num_rows, or null
  int num_rows = 0;                   // 0 to kMaxRows
  DataType row_type;                  // kBf16, kFp16, kFp32
  const void* bias[2] = {};           // [hidden] of out_type, or null
  void* out;          // [hidden] of out_type; may equal bias[0] or bias[1], overlaps nothing else
  DataType out_type;  // kBf16, kFp16, kFp32
  std::int64_t hidden;
  Stores stores = Stores::kCached;
};
void reduce_rows(const ReduceRows& args) noexcept;

// Scalar conversions, the definition that every target must equal bit for bit.
float to_float(const void* element, DataType type) noexcept;
void from_float(float value, void* element, DataType type) noexcept;

// For tests: the SIMD targets of this machine, and a way to force one ("" for the best again).
// False: not available.
const char* const* simd_targets(int* num_targets) noexcept;
bool force_simd_target(const char* name) noexcept;
// For tests: sets the order that row_order() returns.
void force_row_order(RowOrder order) noexcept;

}  // namespace ferry::internal
