// reduce_elements: one result element from the elements of several rows, for the reductions of
// Collectives. Results have the same bits on every SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ferry/types.h"

namespace ferry::internal {

// out[i] = rows[0][i] op rows[1][i] op ..., in this order. bf16 and fp16 are widened to float32,
// reduced there, and rounded once to the nearest, ties to even; all other types are reduced in
// their own arithmetic, in which integers wrap around. kAvg divides the sum by num_rows before the
// rounding. kMin and kMax return NaN where an element is NaN, and the earlier of +0 and -0.
struct ReduceElements {
  const void* const* rows;  // num_rows >= 1 pointers to [count] of type, of any alignment
  int num_rows;
  DataType type;
  ReduceOp op;
  void* out;  // [count] of type; may equal one of the rows, overlaps nothing else
  std::int64_t count;
};
void reduce_elements(const ReduceElements& args) noexcept;

// Whether elements of a type can be reduced by an operation.
bool can_reduce(DataType type, ReduceOp op) noexcept;

// reduce_elements for the types that have no float32 arithmetic.
void reduce_wide_elements(const ReduceElements& args) noexcept;

}  // namespace ferry::internal
