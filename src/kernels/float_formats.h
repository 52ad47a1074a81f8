// bf16 and fp16 as scalars: the definition of every conversion, by integer arithmetic alone, so
// that no flag of the floating-point unit and no compiler option changes a bit. lanes-inl.h has the
// same conversions for vectors.
#pragma once

#include <bit>
#include <cstdint>

namespace ferry::internal {

// Float bit patterns that bound the cases of the conversions.
inline constexpr std::uint32_t kFloatInfinity = 0x7f800000;
inline constexpr std::uint32_t kFloatQuietBit = 0x00400000;
inline constexpr std::uint32_t kFloatMagnitude = 0x7fffffff;
inline constexpr std::uint32_t kFp16Overflow = 0x47800000;   // 65536: from here on fp16 is infinity
inline constexpr std::uint32_t kFp16MinNormal = 0x38800000;  // 2^-14: below it fp16 is subnormal
inline constexpr std::uint32_t kFp16Rebias = (127 - 15) << 23;

constexpr float bf16_to_float(std::uint16_t half) {
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

constexpr std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & kFloatMagnitude) > kFloatInfinity;
  const std::uint32_t rounded = nan ? bits | kFloatQuietBit : bits + 0x7fff + ((bits >> 16) & 1);
  return static_cast<std::uint16_t>(rounded >> 16);
}

constexpr float fp16_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  if (magnitude > 0x7c00)
    return std::bit_cast<float>(sign | kFloatInfinity | kFloatQuietBit | magnitude << 13);
  if (magnitude == 0x7c00) return std::bit_cast<float>(sign | kFloatInfinity);
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | (kFp16Rebias + (magnitude << 13)));
  if (magnitude == 0) return std::bit_cast<float>(sign);
  const int shift = std::countl_zero(magnitude) - 21;  // brings the leading one to bit 10
  const std::uint32_t exponent = static_cast<std::uint32_t>(113 - shift) << 23;
  return std::bit_cast<float>(sign | (exponent + ((magnitude << shift & 0x3ff) << 13)));
}

constexpr std::uint16_t float_to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & kFloatMagnitude;
  std::uint32_t half = 0;
  if (magnitude > kFloatInfinity) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= kFp16Overflow) {
    half = 0x7c00;
  } else if (magnitude >= kFp16MinNormal) {
    half = (magnitude - kFp16Rebias + 0xfff + (magnitude >> 13 & 1)) >>
           13;                           // may carry into infinity, as it should
  } else if (magnitude >= 0x33000000) {  // 2^-25: smaller rounds to zero
    const std::uint32_t shift = 126 - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    half = (mantissa + ((1u << (shift - 1)) - 1) + (mantissa >> shift & 1)) >> shift;
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace ferry::internal
