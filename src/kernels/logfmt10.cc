// The combine wire logfmt10: 10 bits per element on a logarithmic scale between the smallest and
// the largest of its block, or 16 bits where that range is too wide.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/logfmt10.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first: it includes this file again for each target.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/wire_kernels.h"
#include "kernels/wire_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ferry::internal::HWY_NAMESPACE {

inline constexpr std::uint32_t kWideBlock = 0xffffffff;  // the header of 16-bit elements
inline constexpr std::uint32_t kMaxSpan = 2048;          // 16 octaves of 128
inline constexpr float kSteps = 510.0F;
inline constexpr float kTwo23 = 8388608.0F;  // floats from 2^23 on are integers

// The upper halves of the bits between which the numbers of a block lie.
struct Range {
  std::uint32_t low = 0, high = 0;

  std::uint32_t header() const { return low | high << 16; }
  std::uint32_t first() const { return low << 16; }
  float extent() const { return static_cast<float>((high - low) << 16); }
};

template <DataType type>
HWY_INLINE std::uint32_t header_of(const std::byte* block, std::size_t size) {
  const std::uint32_t most = max_magnitude<type>(block, size);
  if (most == 0) return 0;
  if (most >= kFloatInfinity) return kWideBlock;
  const Range range{min_magnitude<type>(block, size) >> 16, (most + 0xffff) >> 16};
  // The value of the largest code has to be a finite number of this type.
  constexpr std::uint32_t kTooLarge =
      (type == DataType::kFp16 ? kFp16Overflow : kFloatInfinity) >> 16;
  return range.high >= kTooLarge || range.high - range.low > kMaxSpan ? kWideBlock : range.header();
}

// The 10-bit codes of floats.
HWY_INLINE Words to_codes(Floats value, std::uint32_t first, float factor) {
  const FloatTag floats;
  const WordTag words;
  const Words bits = hn::BitCast(words, value);
  const Words magnitude = hn::And(bits, hn::Set(words, kFloatMagnitude));
  const Ints distance = hn::BitCast(IntTag(), hn::Sub(magnitude, hn::Set(words, first)));
  const Floats steps = hn::Mul(hn::ConvertTo(floats, distance), hn::Set(floats, factor));
  // The addition of 2^23, whose last place is 1, rounds. The code is at most 510, since no distance
  // exceeds the extent and products keep their order.
  const Words step =
      hn::And(hn::BitCast(words, hn::Add(steps, hn::Set(floats, kTwo23))), hn::Set(words, 0x1ff));
  const Words code = hn::Add(step, hn::Set(words, 1));
  const Words sign = hn::And(hn::ShiftRight<22>(bits), hn::Set(words, 0x200));
  return hn::Or(hn::IfThenZeroElse(hn::Eq(magnitude, hn::Zero(words)), code), sign);
}

// The floats of 10-bit codes.
HWY_INLINE Floats of_codes(Words code, std::uint32_t first, float extent) {
  const FloatTag floats;
  const WordTag words;
  const Words step = hn::And(code, hn::Set(words, 0x1ff));
  const Ints below = hn::BitCast(IntTag(), hn::Sub(step, hn::Set(words, 1)));
  const Floats exact = hn::Mul(hn::ConvertTo(floats, below), hn::Set(floats, extent / kSteps));
  // The largest step gives the extent, for all 2048 extents: nothing rounds beyond it.
  // Highway's scalar NearestInt errs below 0.5; distances are 0 or at least 128.
  const Words distance = hn::BitCast(words, hn::NearestInt(exact));
  const Words magnitude = hn::Add(distance, hn::Set(words, first));
  const Words sign = hn::ShiftLeft<22>(hn::And(code, hn::Set(words, 0x200)));
  const Words number = hn::IfThenZeroElse(hn::Eq(step, hn::Zero(words)), magnitude);
  return hn::BitCast(floats, hn::Or(number, sign));
}

// The codes of a block, with 0 behind the last: first the lower eight bits of each code, then bytes
// with the upper two bits of four codes.
using Codes = std::uint16_t[kGroup];

HWY_INLINE void pack_codes(const Codes& codes, std::size_t size, std::byte* to) {
  const std::size_t quarter = (size + 3) / 4;
  for (std::size_t i = 0; i < size; ++i) to[i] = static_cast<std::byte>(codes[i]);
  for (std::size_t j = 0; j < quarter; ++j) {
    to[size + j] =
        static_cast<std::byte>(codes[j] >> 8 | codes[j + quarter] >> 8 << 2 |
                               codes[j + 2 * quarter] >> 8 << 4 | codes[j + 3 * quarter] >> 8 << 6);
  }
}

HWY_INLINE void unpack_codes(const std::byte* from, std::size_t size, Codes& codes) {
  const std::size_t quarter = (size + 3) / 4;
  const auto* low = reinterpret_cast<const std::uint8_t*>(from);
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t j = 0; j < quarter; ++j)
      codes[k * quarter + j] = static_cast<std::uint16_t>((low[size + j] >> 2 * k & 3) << 8);
  }
  for (std::size_t i = 0; i < size; ++i) codes[i] = codes[i] | low[i];
}

template <DataType type>
HWY_INLINE void encode_codes(const std::byte* block, std::size_t size, std::uint32_t header,
                             std::byte* to) {
  const Range range{header & 0xffff, header >> 16};
  const float extent = range.extent();
  const float factor = extent == 0.0F ? 0.0F : kSteps / extent;
  Codes codes = {};
  for_each_chunk<kElement<type>, sizeof(std::uint16_t)>(
      block, reinterpret_cast<std::byte*>(codes), size,
      [&](const std::byte* in, std::byte* out, std::size_t) FERRY_LAMBDA {
        Floats even, odd;
        load_pairs<type>(in, even, odd);
        const Words low = to_codes(even, range.first(), factor);
        const Words high = to_codes(odd, range.first(), factor);
        store_lanes(WordTag(), hn::Or(low, hn::ShiftLeft<16>(high)), out, false);
      });
  pack_codes(codes, size, to);
}

template <DataType type>
HWY_INLINE void decode_codes(const std::byte* from, std::size_t size, std::uint32_t header,
                             std::byte* to) {
  const Range range{header & 0xffff, header >> 16};
  Codes codes;
  unpack_codes(from, size, codes);
  for_each_chunk<sizeof(std::uint16_t), kElement<type>>(
      reinterpret_cast<const std::byte*>(codes), to, size,
      [&](const std::byte* in, std::byte* out, std::size_t) FERRY_LAMBDA {
        const WordTag words;
        Words a, b;
        if constexpr (kPaired<type>) {
          const Words both = load_lanes(words, in);
          a = hn::And(both, hn::Set(words, 0xffff));
          b = hn::ShiftRight<16>(both);
        } else {
          a = hn::PromoteTo(words, load_lanes(HalfTag(), in));
          b = hn::PromoteTo(words,
                            load_lanes(HalfTag(), in + hn::Lanes(words) * sizeof(std::uint16_t)));
        }
        store_chunk<type, kPaired<type>>(of_codes(a, range.first(), range.extent()),
                                         of_codes(b, range.first(), range.extent()), out, false);
      });
}

// 16-bit elements as they are, fp32 as bf16.
template <DataType type>
HWY_INLINE void encode_wide(const std::byte* block, std::size_t size, std::byte* to) {
  if constexpr (type != DataType::kFp32) {
    std::memcpy(to, block, size * sizeof(std::uint16_t));
  } else {
    for_each_chunk<sizeof(float), sizeof(std::uint16_t)>(
        block, to, size, [](const std::byte* in, std::byte* out, std::size_t) FERRY_LAMBDA {
          Floats a, b;
          load_chunk<type, false>(in, a, b);
          store_chunk<DataType::kBf16, false>(a, b, out, false);
        });
  }
}

template <DataType type>
HWY_INLINE void decode_wide(const std::byte* from, std::size_t size, std::byte* to) {
  if constexpr (type != DataType::kFp32) {
    std::memcpy(to, from, size * sizeof(std::uint16_t));
  } else {
    for_each_chunk<sizeof(std::uint16_t), sizeof(float)>(
        from, to, size, [](const std::byte* in, std::byte* out, std::size_t) FERRY_LAMBDA {
          Floats a, b;
          load_chunk<DataType::kBf16, false>(in, a, b);
          store_chunk<type, false>(a, b, out, false);
        });
  }
}

std::size_t bytes_of_block(std::uint32_t header, std::size_t size) {
  return header == kWideBlock ? size * sizeof(std::uint16_t) : size + (size + 3) / 4;
}

// Headers first, then blocks: a block's codes wait for its header.
template <DataType type>
HWY_INLINE void encode_row(const EncodeRow& row) {
  const auto hidden = static_cast<std::size_t>(row.hidden);
  const auto* const from = static_cast<const std::byte*>(row.row);
  for_each_group<kGroup>(hidden, [&](std::size_t first, std::size_t size) FERRY_LAMBDA {
    put(row.out, first / kGroup, header_of<type>(from + first * kElement<type>, size));
  });
  auto* to = static_cast<std::byte*>(row.out) + num_blocks(hidden, kGroup) * sizeof(std::uint32_t);
  for_each_group<kGroup>(hidden, [&](std::size_t first, std::size_t size) FERRY_LAMBDA {
    const std::byte* block = from + first * kElement<type>;
    const auto header = at<std::uint32_t>(row.out, first / kGroup);
    fetch_next(row, first * kElement<type>, size * kElement<type>);
    if (header == kWideBlock) {
      encode_wide<type>(block, size, to);
    } else {
      encode_codes<type>(block, size, header, to);
    }
    to += bytes_of_block(header, size);
  });
}

template <DataType type>
HWY_INLINE void decode_row(const DecodeRow& row) {
  const auto hidden = static_cast<std::size_t>(row.hidden);
  const auto* from = static_cast<const std::byte*>(row.encoded) +
                     num_blocks(hidden, kGroup) * sizeof(std::uint32_t);
  for_each_group<kGroup>(hidden, [&](std::size_t first, std::size_t size) FERRY_LAMBDA {
    std::byte* to = static_cast<std::byte*>(row.out) + first * kElement<type>;
    const auto header = at<std::uint32_t>(row.encoded, first / kGroup);
    if (header == kWideBlock) {
      decode_wide<type>(from, size, to);
    } else {
      decode_codes<type>(from, size, header, to);
    }
    from += bytes_of_block(header, size);
  });
}

void logfmt10_from_row(const EncodeRow& row) {
  with_type(row.row_type, [&row]<DataType type>() FERRY_LAMBDA { encode_row<type>(row); });
}

void row_from_logfmt10(const DecodeRow& row) {
  with_type(row.row_type, [&row]<DataType type>() FERRY_LAMBDA { decode_row<type>(row); });
}

}  // namespace ferry::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ferry::internal {

HWY_EXPORT(logfmt10_from_row);
HWY_EXPORT(row_from_logfmt10);

void encode_logfmt10(const EncodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(logfmt10_from_row)(row);
}
void decode_logfmt10(const DecodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(row_from_logfmt10)(row);
}

}  // namespace ferry::internal
#endif
