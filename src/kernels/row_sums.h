// Sums over the channels of one row, in the 16 partial sums of docs/numerics.md: constant experts
// and the fused RMSNorm.
#pragma once

#include <cstdint>

#include "ferry/types.h"

namespace ferry::internal {

// out[h] = a1 * x[h] + a2 * v[h], with a1, a2 the softmax of dot(alpha1, x), dot(alpha2, x).
struct ConstantSummand {
  const void* x;  // [hidden] of type, as the three below
  const void* alpha1;
  const void* alpha2;
  const void* v;
  DataType type;  // kBf16, kFp16, kFp32
  std::int64_t hidden;
  float* out;  // [hidden]
};
void constant_summand(const ConstantSummand& args) noexcept;

// rstd = 1 / sqrt(mean(z^2) + epsilon), out = round(z), y = round(round(z * rstd) * gamma).
struct NormaliseRow {
  const float* z;     // [hidden]
  const void* gamma;  // [hidden] of type
  float epsilon;
  DataType type;  // kBf16, kFp16, kFp32
  std::int64_t hidden;
  void* out;  // [hidden] of type
  void* y;    // [hidden] of type
  float* rstd;
};
void normalise_row(const NormaliseRow& args) noexcept;

}  // namespace ferry::internal
