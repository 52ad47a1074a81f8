// The wire formats as a table: names, sizes, kernels. Called by src/exchange;
// names the kernels of quantise_int8.cc, quantise_fp8.cc, block_int8.cc and
// logfmt10.cc.
#include "kernels/wire_formats.h"

#include "kernels/wire_kernels.h"

namespace ferry::internal {
namespace {

std::size_t row_as_it_is(std::int64_t hidden, DataType row_type) noexcept {
  return static_cast<std::size_t>(hidden) * element_bytes(row_type);
}

std::size_t byte_per_element(std::int64_t hidden, DataType) noexcept {
  return static_cast<std::size_t>(hidden);
}

template <std::size_t block>
std::size_t int8_blocks(std::int64_t hidden, DataType row_type) noexcept {
  const auto elements = static_cast<std::size_t>(hidden);
  return padded_int8_bytes(elements) + num_blocks(elements, block) * element_bytes(row_type);
}

// Every block as 16-bit elements.
std::size_t logfmt10_at_most(std::int64_t hidden, DataType) noexcept {
  const auto elements = static_cast<std::size_t>(hidden);
  return num_blocks(elements, kGroup) * sizeof(std::uint32_t) + elements * sizeof(std::uint16_t);
}

std::int64_t no_scale(std::int64_t) noexcept { return 0; }
std::int64_t one_scale(std::int64_t) noexcept { return 1; }
std::int64_t scale_per_group(std::int64_t hidden) noexcept {
  return static_cast<std::int64_t>(num_blocks(static_cast<std::size_t>(hidden), kGroup));
}
std::int64_t byte_per_group(std::int64_t hidden) noexcept {
  return (scale_per_group(hidden) + 3) / 4;
}

constexpr DataType kInt8 = DataType::kInt8;
constexpr DataType kFp8 = DataType::kFp8E4m3;
constexpr DataType kOpaque = DataType::kBytes;

// In the order of the enums.
constexpr WireFormat kFormats[] = {
    {"none", kOpaque, row_as_it_is, no_scale, nullptr, nullptr},
    {"int8", kInt8, byte_per_element, one_scale, encode_int8, decode_int8},
    {"int8_static", kInt8, byte_per_element, no_scale, encode_int8_static, decode_int8_static},
    {"fp8", kFp8, byte_per_element, scale_per_group, encode_fp8, decode_fp8},
    {"fp8_pow2", kFp8, byte_per_element, scale_per_group, encode_fp8_pow2, decode_fp8},
    {"fp8_ue8m0", kFp8, byte_per_element, byte_per_group, encode_fp8_ue8m0, decode_fp8_ue8m0},
};
constexpr WireFormat kCombineFormats[] = {
    {"none", kOpaque, row_as_it_is, no_scale, nullptr, nullptr},
    {"int8_8", kOpaque, int8_blocks<8>, no_scale, encode_int8_8, decode_int8_8},
    {"int8_128", kOpaque, int8_blocks<128>, no_scale, encode_int8_128, decode_int8_128},
    {"logfmt10", kOpaque, logfmt10_at_most, no_scale, encode_logfmt10, decode_logfmt10},
};

}  // namespace

const WireFormat& wire_format(Wire wire) noexcept { return kFormats[static_cast<int>(wire)]; }

const WireFormat& wire_format(CombineWire wire) noexcept {
  return kCombineFormats[static_cast<int>(wire)];
}

}  // namespace ferry::internal
