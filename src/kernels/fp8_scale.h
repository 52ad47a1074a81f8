// The scale of a group of an fp8 wire (docs/numerics.md), for the processor and for CUDA.
#pragma once

#include <bit>
#include <cstdint>

#include "ferry/types.h"
#include "kernels/float_formats.h"

namespace ferry::internal {

struct Fp8Scale {
  float scale;   // sent with the row
  float factor;  // elements are multiplied by this
};

// The scale of a group whose largest magnitude is `most`, at least 1e-4. Multiplying by the
// reciprocal of a power of two equals dividing by the power.
constexpr Fp8Scale fp8_scale(float most, Wire wire) {
  constexpr float kE4m3Max = 448.0F;
  const float scale = most / kE4m3Max;
  if (wire == Wire::kFp8) return {scale, kE4m3Max / most};
  const std::uint32_t power =
      (std::bit_cast<std::uint32_t>(scale) + ~kFloatInfinity) & kFloatInfinity;
  return {std::bit_cast<float>(power), std::bit_cast<float>((254U << 23) - power)};
}

}  // namespace ferry::internal
