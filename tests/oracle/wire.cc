// The oracle's wire formats of dispatch and of combine: docs/numerics.md, one element after the
// other. They use the scalar conversions of kernels.h.
#include "oracle/wire.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"

namespace ferry::internal {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t kGroup = 128;  // channels that share a scale of fp8; block of logfmt10
constexpr std::uint32_t kWideBlock = 0xffffffff;  // logfmt10: header of a block of 16-bit elements

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

Floats to_floats(std::span<const std::byte> row, DataType type) {
  Floats values;
  for (std::size_t at = 0; at < row.size(); at += element_bytes(type))
    values.push_back(to_float(&row[at], type));
  return values;
}

void append(Bytes& bytes, float value, DataType type) {
  bytes.resize(bytes.size() + element_bytes(type));
  from_float(value, &bytes[bytes.size() - element_bytes(type)], type);
}

void append(Bytes& bytes, std::uint32_t word) {
  for (int byte = 0; byte < 4; ++byte) bytes.push_back(static_cast<std::byte>(word >> 8 * byte));
}

std::byte int8(float value) {
  return static_cast<std::byte>(static_cast<std::int8_t>(std::rint(value)));
}

float of_int8(std::byte q) { return static_cast<float>(static_cast<std::int8_t>(q)); }

// NaN as soon as one value is NaN or infinite.
float max_abs(std::span<const float> values) {
  float most = 0.0F;
  for (const float value : values) {
    if (!std::isfinite(value)) return kNan;
    most = std::max(most, std::fabs(value));
  }
  return most;
}

// ---- dispatch

std::byte to_e4m3(float value) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::min(std::fabs(value), 448.0F);
  const int exponent = magnitude == 0.0F ? -6 : std::max(std::ilogb(magnitude), -6);
  const int eighths = static_cast<int>(std::rint(std::ldexp(magnitude, 3 - exponent)));
  return static_cast<std::byte>(sign | ((exponent + 6) * 8 + eighths));  // 16 eighths carry
}

float of_e4m3(std::byte code) {
  const int exponent = std::to_integer<int>(code) >> 3 & 0xf;
  const int eighths = (std::to_integer<int>(code) & 7) + (exponent == 0 ? 0 : 8);
  const float magnitude = std::ldexp(static_cast<float>(eighths), std::max(exponent, 1) - 7 - 3);
  return (std::to_integer<int>(code) & 0x80) != 0 ? -magnitude : magnitude;
}

ReferenceEncoded encode_int8(const Floats& y) {
  const float most = max_abs(y);
  const float factor = 127.0F / most;
  ReferenceEncoded encoded{.row = Bytes(y.size()), .scales = {}};
  if (std::isnan(most)) {
    append(encoded.scales, kNan, DataType::kFp32);
  } else if (std::isinf(factor)) {
    append(encoded.scales, 0.0F, DataType::kFp32);
  } else {
    for (std::size_t h = 0; h < y.size(); ++h) encoded.row[h] = int8(y[h] * factor);
    append(encoded.scales, 1.0F / factor, DataType::kFp32);
  }
  return encoded;
}

ReferenceEncoded encode_int8_static(const Floats& y) {
  ReferenceEncoded encoded;
  for (const float value : y)
    encoded.row.push_back(std::isnan(value) ? std::byte{0}
                                            : int8(std::clamp(value, -128.0F, 127.0F)));
  return encoded;
}

float round_up_to_power_of_two(float value) {
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // [0.5, 1)
  return std::ldexp(1.0F, fraction == 0.5F ? exponent - 1 : exponent);
}

// One group; returns its scale.
float encode_fp8_group(Wire wire, std::span<const float> y, std::byte* elements) {
  if (std::isnan(max_abs(y))) {
    std::fill_n(elements, y.size(), std::byte{0});
    return kNan;
  }
  const float most = std::max(max_abs(y), 1e-4F);
  const bool any_scale = wire == Wire::kFp8;
  const float scale = any_scale ? most / 448.0F : round_up_to_power_of_two(most / 448.0F);
  for (std::size_t i = 0; i < y.size(); ++i)
    elements[i] = to_e4m3(any_scale ? y[i] * (448.0F / most) : y[i] / scale);
  return scale;
}

ReferenceEncoded encode_fp8(Wire wire, const Floats& y) {
  ReferenceEncoded encoded{.row = Bytes(y.size()), .scales = {}};
  std::uint32_t packed = 0;
  std::size_t group = 0;
  for (std::size_t first = 0; first < y.size(); first += kGroup, ++group) {
    const std::size_t size = std::min(kGroup, y.size() - first);
    const float scale =
        encode_fp8_group(wire, std::span(y).subspan(first, size), &encoded.row[first]);
    if (wire != Wire::kFp8Ue8m0) {
      append(encoded.scales, scale, DataType::kFp32);
      continue;
    }
    const std::uint32_t exponent = std::isnan(scale) ? 255 : std::ilogb(scale) + 127;
    packed |= exponent << 8 * (group % 4);
    if (group % 4 != 3 && first + size < y.size()) continue;
    append(encoded.scales, packed);
    packed = 0;
  }
  return encoded;
}

// The scale of channel h of a row.
float scale_of(Wire wire, const ReferenceEncoded& encoded, std::size_t h) {
  const std::size_t index = wire == Wire::kInt8 ? 0 : h / kGroup;
  if (wire != Wire::kFp8Ue8m0) return to_float(&encoded.scales[index * 4], DataType::kFp32);
  const int exponent = std::to_integer<int>(encoded.scales[index]);
  return exponent == 255 ? kNan : std::ldexp(1.0F, exponent - 127);
}

// ---- combine, int8

std::size_t block_size(CombineWire wire) { return wire == CombineWire::kInt8Block8 ? 8 : kGroup; }

Bytes encode_int8_blocks(CombineWire wire, const Floats& x, DataType type) {
  Bytes elements((x.size() + 31) / 32 * 32);
  Bytes scales;
  for (std::size_t first = 0; first < x.size(); first += block_size(wire)) {
    const std::size_t size = std::min(block_size(wire), x.size() - first);
    const float most = max_abs(std::span(x).subspan(first, size));
    const float scale = most * (1.0F / 127.0F);
    append(scales, std::isnan(scale) ? kNan : scale, type);
    if (std::isnan(scale) || scale == 0.0F) continue;
    for (std::size_t h = first; h < first + size; ++h)
      elements[h] = int8(std::clamp(x[h] / scale, -127.0F, 127.0F));
  }
  elements.insert(elements.end(), scales.begin(), scales.end());
  return elements;
}

Bytes decode_int8_blocks(CombineWire wire, const Bytes& encoded, DataType type,
                         std::size_t hidden) {
  const std::size_t scales = (hidden + 31) / 32 * 32;
  Bytes row;
  for (std::size_t h = 0; h < hidden; ++h) {
    const std::size_t at = scales + h / block_size(wire) * element_bytes(type);
    append(row, of_int8(encoded[h]) * to_float(&encoded[at], type), type);
  }
  return row;
}

// ---- combine, logfmt10

std::uint32_t magnitude_bits(float value) { return std::bit_cast<std::uint32_t>(std::fabs(value)); }

// Upper halves of float32 bits between which the numbers of a block lie.
struct Range {
  std::uint32_t low = 0, high = 0;

  static Range of_header(std::uint32_t header) { return {header & 0xffff, header >> 16}; }
  std::uint32_t header() const { return low | high << 16; }
  std::uint32_t first() const { return low << 16; }
  std::uint32_t extent() const { return (high - low) << 16; }
};

Range range_of(std::span<const float> x) {
  std::uint32_t least = 0xffffffff, most = 0;
  for (const float value : x) {
    if (value == 0.0F) continue;
    least = std::min(least, magnitude_bits(value));
    most = std::max(most, magnitude_bits(value));
  }
  if (most == 0) return {};
  return {least >> 16, (most + 0xffff) >> 16};
}

// NaN and infinity as well, and what would become infinite in the row's type.
bool needs_wide_elements(const Range& range, DataType type) {
  const std::uint32_t too_large = type == DataType::kFp16 ? 0x4780 : 0x7f80;
  return range.high >= too_large || range.high - range.low > 2048;
}

std::uint32_t to_code(float value, const Range& range) {
  const std::uint32_t sign = std::signbit(value) ? 1 << 9 : 0;
  if (value == 0.0F) return sign;
  if (range.extent() == 0) return sign | 1;
  const auto distance = static_cast<float>(magnitude_bits(value) - range.first());
  const float step = std::rint(distance * (510.0F / static_cast<float>(range.extent())));
  return sign | (1 + static_cast<std::uint32_t>(std::min(510.0F, step)));
}

float of_code(std::uint32_t code, const Range& range) {
  const std::uint32_t sign = (code >> 9) << 31;
  const std::uint32_t step = code & 0x1ff;
  if (step == 0) return std::bit_cast<float>(sign);
  const auto extent = static_cast<float>(range.extent());
  const float distance = std::rint(static_cast<float>(step - 1) * (extent / 510.0F));
  const std::uint32_t bits = range.first() + static_cast<std::uint32_t>(std::min(extent, distance));
  return std::bit_cast<float>(sign | bits);
}

// The elements of a wide block: 16 bits as they are, fp32 rounded.
void append_wide(Bytes& bytes, std::span<const std::byte> block, DataType type) {
  if (type != DataType::kFp32) {
    bytes.insert(bytes.end(), block.begin(), block.end());
    return;
  }
  for (const float value : to_floats(block, type)) append(bytes, value, DataType::kBf16);
}

void append_codes(Bytes& bytes, const Floats& x, const Range& range) {
  const std::size_t quarter = (x.size() + 3) / 4;
  const std::size_t low = bytes.size(), high = low + x.size();
  bytes.resize(high + quarter);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t code = to_code(x[i], range);
    bytes[low + i] = static_cast<std::byte>(code);
    bytes[high + i % quarter] |= static_cast<std::byte>(code >> 8 << 2 * (i / quarter));
  }
}

Bytes encode_logfmt10(std::span<const std::byte> row, DataType type) {
  const std::size_t block_bytes = kGroup * element_bytes(type);
  Bytes headers, blocks;
  for (std::size_t first = 0; first < row.size(); first += block_bytes) {
    const auto block = row.subspan(first, std::min(block_bytes, row.size() - first));
    const Floats x = to_floats(block, type);
    const Range range = range_of(x);
    const bool wide = needs_wide_elements(range, type);
    append(headers, wide ? kWideBlock : range.header());
    if (wide) {
      append_wide(blocks, block, type);
    } else {
      append_codes(blocks, x, range);
    }
  }
  headers.insert(headers.end(), blocks.begin(), blocks.end());
  return headers;
}

// Appends the row's elements of one block of `size`; returns the bytes that the block took.
std::size_t decode_block(Bytes& row, std::uint32_t header, std::span<const std::byte> block,
                         std::size_t size, DataType type) {
  if (header == kWideBlock) {
    if (type != DataType::kFp32) row.insert(row.end(), block.begin(), block.begin() + 2 * size);
    for (std::size_t i = 0; i < size && type == DataType::kFp32; ++i)
      append(row, to_float(&block[2 * i], DataType::kBf16), type);
    return 2 * size;
  }
  const std::size_t quarter = (size + 3) / 4;
  for (std::size_t i = 0; i < size; ++i) {
    const auto low = std::to_integer<std::uint32_t>(block[i]);
    const auto high = std::to_integer<std::uint32_t>(block[size + i % quarter]);
    const std::uint32_t code = low | (high >> 2 * (i / quarter) & 3) << 8;
    append(row, of_code(code, Range::of_header(header)), type);
  }
  return size + quarter;
}

Bytes decode_logfmt10(const Bytes& encoded, DataType type, std::size_t hidden) {
  Bytes row;
  std::size_t at = (hidden + kGroup - 1) / kGroup * 4;
  for (std::size_t first = 0; first < hidden; first += kGroup) {
    std::uint32_t header = 0;
    std::memcpy(&header, &encoded[first / kGroup * 4], sizeof header);
    at += decode_block(row, header, std::span(encoded).subspan(at),
                       std::min(kGroup, hidden - first), type);
  }
  return row;
}

}  // namespace

ReferenceEncoded reference_encode(Wire wire, std::span<const std::byte> row, DataType type,
                                  std::span<const float> factors) {
  Floats y = to_floats(row, type);
  for (std::size_t h = 0; h < y.size() && !factors.empty(); ++h)
    y[h] = y[h] * factors[factors.size() == 1 ? 0 : h];
  switch (wire) {
    case Wire::kNone: return {.row = Bytes(row.begin(), row.end()), .scales = {}};
    case Wire::kInt8: return encode_int8(y);
    case Wire::kInt8Static: return encode_int8_static(y);
    case Wire::kFp8:
    case Wire::kFp8Pow2:
    case Wire::kFp8Ue8m0: return encode_fp8(wire, y);
  }
  return {};
}

std::vector<float> reference_decode(Wire wire, const ReferenceEncoded& encoded) {
  Floats values;
  for (std::size_t h = 0; h < encoded.row.size(); ++h) {
    const bool is_int8 = wire == Wire::kInt8 || wire == Wire::kInt8Static;
    const float element = is_int8 ? of_int8(encoded.row[h]) : of_e4m3(encoded.row[h]);
    values.push_back(wire == Wire::kInt8Static ? element : element * scale_of(wire, encoded, h));
  }
  return values;
}

std::vector<std::byte> reference_encode(CombineWire wire, std::span<const std::byte> row,
                                        DataType type) {
  switch (wire) {
    case CombineWire::kNone: return Bytes(row.begin(), row.end());
    case CombineWire::kInt8Block8:
    case CombineWire::kInt8Block128: return encode_int8_blocks(wire, to_floats(row, type), type);
    case CombineWire::kLogfmt10: return encode_logfmt10(row, type);
  }
  return {};
}

std::vector<std::byte> reference_travel(CombineWire wire, std::span<const std::byte> row,
                                        DataType type) {
  Bytes encoded = reference_encode(wire, row, type);
  const std::size_t hidden = row.size() / element_bytes(type);
  switch (wire) {
    case CombineWire::kNone: return encoded;
    case CombineWire::kInt8Block8:
    case CombineWire::kInt8Block128: return decode_int8_blocks(wire, encoded, type, hidden);
    case CombineWire::kLogfmt10: return decode_logfmt10(encoded, type, hidden);
  }
  return {};
}

}  // namespace ferry::internal
