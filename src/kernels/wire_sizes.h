// The sizes of a row in each wire format, without the kernels that encode it. Window sizes and the
// traffic of an exchange are computed from them. docs/numerics.md defines every bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ferry/types.h"

namespace ferry::internal {

inline constexpr std::size_t kGroup = 128;  // channels that share a scale of fp8; block of logfmt10

constexpr std::size_t num_blocks(std::size_t hidden, std::size_t block) {
  return (hidden + block - 1) / block;
}

// The offset of the scales in a row of int8 blocks.
constexpr std::size_t padded_int8_bytes(std::size_t hidden) { return (hidden + 31) / 32 * 32; }

struct WireSizes {
  std::size_t (*encoded_bytes)(std::int64_t hidden, DataType row_type) noexcept;  // most
  std::int64_t (*num_scales)(std::int64_t hidden) noexcept;
};

namespace wire_sizes {

inline std::size_t row_as_it_is(std::int64_t hidden, DataType row_type) noexcept {
  return static_cast<std::size_t>(hidden) * element_bytes(row_type);
}

inline std::size_t byte_per_element(std::int64_t hidden, DataType) noexcept {
  return static_cast<std::size_t>(hidden);
}

template <std::size_t block>
std::size_t int8_blocks(std::int64_t hidden, DataType row_type) noexcept {
  const auto elements = static_cast<std::size_t>(hidden);
  return padded_int8_bytes(elements) + num_blocks(elements, block) * element_bytes(row_type);
}

// The size of a row whose blocks all have 16-bit elements.
inline std::size_t logfmt10_at_most(std::int64_t hidden, DataType) noexcept {
  const auto elements = static_cast<std::size_t>(hidden);
  return num_blocks(elements, kGroup) * sizeof(std::uint32_t) + elements * sizeof(std::uint16_t);
}

inline std::int64_t no_scale(std::int64_t) noexcept { return 0; }
inline std::int64_t one_scale(std::int64_t) noexcept { return 1; }
inline std::int64_t scale_per_group(std::int64_t hidden) noexcept {
  return static_cast<std::int64_t>(num_blocks(static_cast<std::size_t>(hidden), kGroup));
}
inline std::int64_t byte_per_group(std::int64_t hidden) noexcept {
  return (scale_per_group(hidden) + 3) / 4;
}

// In the order of the enums.
inline constexpr WireSizes kDispatch[] = {
    {row_as_it_is, no_scale},
    {byte_per_element, one_scale},
    {byte_per_element, no_scale},
    {byte_per_element, scale_per_group},
    {byte_per_element, scale_per_group},
    {byte_per_element, byte_per_group},
};
inline constexpr WireSizes kCombine[] = {
    {row_as_it_is, no_scale},
    {int8_blocks<8>, no_scale},
    {int8_blocks<128>, no_scale},
    {logfmt10_at_most, no_scale},
};

}  // namespace wire_sizes

constexpr const WireSizes& sizes_of(Wire wire) noexcept {
  return wire_sizes::kDispatch[static_cast<int>(wire)];
}
constexpr const WireSizes& sizes_of(CombineWire wire) noexcept {
  return wire_sizes::kCombine[static_cast<int>(wire)];
}

}  // namespace ferry::internal
