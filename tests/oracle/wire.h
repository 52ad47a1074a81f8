// The oracle's wire formats, special terms and norm: docs/numerics.md as slow obvious loops, one
// element after the other. They share no code with the kernels but the scalar conversions of
// kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ferry/types.h"

namespace ferry::internal {

struct ReferenceEncoded {
  std::vector<std::byte> row;     // one byte per element
  std::vector<std::byte> scales;  // 4 bytes each
};

// A row of dispatch, [H] of `type`; `factors` is empty, one value, or [H].
ReferenceEncoded reference_encode(Wire wire, std::span<const std::byte> row, DataType type,
                                  std::span<const float> factors);
// The row as float32 values: element times scale (int8_static: the element).
std::vector<float> reference_decode(Wire wire, const ReferenceEncoded& encoded);

// A row of combine, encoded; and a row after it travelled: encoded and decoded.
std::vector<std::byte> reference_encode(CombineWire wire, std::span<const std::byte> row,
                                        DataType type);
std::vector<std::byte> reference_travel(CombineWire wire, std::span<const std::byte> row,
                                        DataType type);

// The term of a constant expert, [H]; all four of `type`.
std::vector<float> reference_constant_term(std::span<const std::byte> x,
                                           std::span<const std::byte> alpha1,
                                           std::span<const std::byte> alpha2,
                                           std::span<const std::byte> v, DataType type);

struct ReferenceNorm {
  std::vector<std::byte> out, y;  // [H] of the type
  float rstd = 0.0F;
};
ReferenceNorm reference_norm(std::span<const float> z, std::span<const std::byte> gamma,
                             float epsilon, DataType type);

}  // namespace ferry::internal
