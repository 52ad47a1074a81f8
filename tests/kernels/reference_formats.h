// bf16 and fp16 by arithmetic on real numbers, a second definition that shares nothing with the
// library's bit patterns.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ferry::internal::testing {

struct HalfFormat {
  int mantissa_bits;
  int min_exponent;  // of normal numbers
  int max_exponent;
};
inline constexpr HalfFormat kBf16Format{7, -126, 127};
inline constexpr HalfFormat kFp16Format{10, -14, 15};

inline float half_to_float(std::uint16_t half, HalfFormat format) {
  const int mantissa = half & ((1 << format.mantissa_bits) - 1);
  const int exponent = (half & 0x7fff) >> format.mantissa_bits;
  const float sign = half & 0x8000 ? -1.0f : 1.0f;
  if (exponent > format.max_exponent + 1 - format.min_exponent) {
    if (mantissa == 0) return sign * std::numeric_limits<float>::infinity();
    const std::uint32_t payload = static_cast<std::uint32_t>(mantissa)
                                  << (23 - format.mantissa_bits);
    return std::bit_cast<float>((half & 0x8000u) << 16 | 0x7f800000u | payload);
  }
  if (exponent == 0)
    return sign *
           std::ldexp(static_cast<float>(mantissa), format.min_exponent - format.mantissa_bits);
  const int significand = mantissa + (1 << format.mantissa_bits);
  return sign * std::ldexp(static_cast<float>(significand),
                           exponent - 1 + format.min_exponent - format.mantissa_bits);
}

// Nearest, ties to even. A NaN keeps its sign and top payload bits and becomes quiet.
inline std::uint16_t float_to_half(float value, HalfFormat format) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = (format.max_exponent + 1 - format.min_exponent + 1) << format.mantissa_bits;
  const int quiet = 1 << (format.mantissa_bits - 1);
  if (std::isnan(value)) {
    const std::uint32_t payload =
        (std::bit_cast<std::uint32_t>(value) & 0x7fffff) >> (23 - format.mantissa_bits);
    return static_cast<std::uint16_t>(sign | infinity | quiet | static_cast<int>(payload));
  }
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  const double magnitude = std::fabs(static_cast<double>(value));
  const int exponent =
      magnitude == 0 ? format.min_exponent : std::max(std::ilogb(magnitude), format.min_exponent);
  if (exponent > format.max_exponent) return static_cast<std::uint16_t>(sign | infinity);
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const int half =
      ((exponent - format.min_exponent) << format.mantissa_bits) + static_cast<int>(units);
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace ferry::internal::testing
