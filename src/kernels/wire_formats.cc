// The wire formats as a table: names, sizes, kernels.
#include "kernels/wire_formats.h"

#include "kernels/wire_kernels.h"

namespace ferry::internal {
namespace {

template <typename Format>
constexpr WireFormat format(const char* name, DataType element_type, Format wire,
                            void (*encode)(const EncodeRow&) noexcept,
                            void (*decode)(const DecodeRow&) noexcept) {
  const auto [encoded_bytes, num_scales] = sizes_of(wire);
  return {name, element_type, encoded_bytes, num_scales, encode, decode};
}

constexpr DataType kInt8 = DataType::kInt8;
constexpr DataType kFp8 = DataType::kFp8E4m3;
constexpr DataType kOpaque = DataType::kBytes;

// In the order of enum Wire.
constexpr WireFormat kFormats[] = {
    format("none", kOpaque, Wire::kNone, nullptr, nullptr),
    format("int8", kInt8, Wire::kInt8, encode_int8, decode_int8),
    format("int8_static", kInt8, Wire::kInt8Static, encode_int8_static, decode_int8_static),
    format("fp8", kFp8, Wire::kFp8, encode_fp8, decode_fp8),
    format("fp8_pow2", kFp8, Wire::kFp8Pow2, encode_fp8_pow2, decode_fp8),
    format("fp8_ue8m0", kFp8, Wire::kFp8Ue8m0, encode_fp8_ue8m0, decode_fp8_ue8m0),
};
constexpr WireFormat kCombineFormats[] = {
    format("none", kOpaque, CombineWire::kNone, nullptr, nullptr),
    format("int8_8", kOpaque, CombineWire::kInt8Block8, encode_int8_8, decode_int8_8),
    format("int8_128", kOpaque, CombineWire::kInt8Block128, encode_int8_128, decode_int8_128),
    format("logfmt10", kOpaque, CombineWire::kLogfmt10, encode_logfmt10, decode_logfmt10),
};

}  // namespace

const WireFormat& wire_format(Wire wire) noexcept { return kFormats[static_cast<int>(wire)]; }

const WireFormat& wire_format(CombineWire wire) noexcept {
  return kCombineFormats[static_cast<int>(wire)];
}

}  // namespace ferry::internal
