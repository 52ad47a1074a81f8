// The kernels of the wire formats, and their common constants. docs/numerics.md defines every bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/wire_formats.h"
#include "kernels/wire_sizes.h"

namespace ferry::internal {

inline constexpr std::uint32_t kFloatNan = 0x7fc00000;  // the scale of a group with NaN or infinity

// Scales need not be aligned.
template <class T>
void put(void* array, std::size_t index, T value) {
  std::memcpy(static_cast<std::byte*>(array) + index * sizeof value, &value, sizeof value);
}
template <class T>
T at(const void* array, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(array) + index * sizeof value, sizeof value);
  return value;
}

// quantise_int8.cc
void encode_int8(const EncodeRow& row) noexcept;
void decode_int8(const DecodeRow& row) noexcept;
void encode_int8_static(const EncodeRow& row) noexcept;
void decode_int8_static(const DecodeRow& row) noexcept;

// quantise_fp8.cc
void encode_fp8(const EncodeRow& row) noexcept;
void encode_fp8_pow2(const EncodeRow& row) noexcept;
void encode_fp8_ue8m0(const EncodeRow& row) noexcept;
void decode_fp8(const DecodeRow& row) noexcept;  // fp8_pow2 as well
void decode_fp8_ue8m0(const DecodeRow& row) noexcept;

// block_int8.cc
void encode_int8_8(const EncodeRow& row) noexcept;
void decode_int8_8(const DecodeRow& row) noexcept;
void encode_int8_128(const EncodeRow& row) noexcept;
void decode_int8_128(const DecodeRow& row) noexcept;

// logfmt10.cc
void encode_logfmt10(const EncodeRow& row) noexcept;
void decode_logfmt10(const DecodeRow& row) noexcept;

}  // namespace ferry::internal
