// The combine wires int8_8 and int8_128: int8 elements in blocks that share a scale, the scales
// behind the elements.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block_int8.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first: it includes this file again for each target.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/kernels.h"
#include "kernels/wire_kernels.h"
#include "kernels/wire_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ferry::internal::HWY_NAMESPACE {

inline constexpr std::size_t kSmallBlock = 8;
inline constexpr float kShare = 1.0F / 127.0F;

// rint(x / scale) in the lowest bytes. Where the scale is a small subnormal, x may be a large
// multiple of it.
HWY_INLINE Words block_code(Floats x, Floats scale) {
  const FloatTag floats;
  const Floats steps = hn::Div(x, scale);
  return nearest_in_low_bits(
      hn::Max(hn::Min(steps, hn::Set(floats, 127.0F)), hn::Set(floats, -127.0F)));
}

// Where the scale of the block that begins with element `first` lies.
template <DataType type, std::size_t block>
HWY_INLINE std::size_t scale_at(std::int64_t hidden, std::size_t first) {
  return padded_int8_bytes(static_cast<std::size_t>(hidden)) + first / block * kElement<type>;
}

template <DataType type, std::size_t block>
HWY_INLINE void encode_blocks(const EncodeRow& row) {
  const auto encode = [&](std::size_t first, std::size_t size,
                          std::uint32_t max_bits) FERRY_LAMBDA {
    const std::byte* from = static_cast<const std::byte*>(row.row) + first * kElement<type>;
    auto* const out = static_cast<std::byte*>(row.out);
    const bool finite = max_bits < kFloatInfinity;
    const float scale = std::bit_cast<float>(finite ? max_bits : kFloatNan) * kShare;
    from_float(scale, out + scale_at<type, block>(row.hidden, first), type);
    if (!finite || scale == 0.0F) {
      std::memset(out + first, 0, size);
      return;
    }
    for_each_chunk<kElement<type>, 1>(
        from, out + first, size,
        [scale](const std::byte* in, std::byte* to, std::size_t) FERRY_LAMBDA {
          const Floats scales = hn::Set(FloatTag(), scale);
          Floats even, odd;
          load_pairs<type>(in, even, odd);
          store_code_pairs(block_code(even, scales), block_code(odd, scales), to);
        });
  };
  for_each_group_with_max<type, block>(row, encode);
}

template <DataType type, std::size_t block>
HWY_INLINE void decode_blocks(const DecodeRow& row) {
  const auto* encoded = static_cast<const std::byte*>(row.encoded);
  const auto decode = [&](std::size_t first, std::size_t size) FERRY_LAMBDA {
    const float scale = to_float(encoded + scale_at<type, block>(row.hidden, first), type);
    scale_int8<type>(encoded + first, size, scale,
                     static_cast<std::byte*>(row.out) + first * kElement<type>);
  };
  for_each_group<block>(static_cast<std::size_t>(row.hidden), decode);
}

#if HWY_TARGET != HWY_SCALAR

// A block of 8 is four lanes of even and four of odd elements; each of the four lanes gets its
// largest magnitude.
HWY_INLINE Ints block_maxima(Floats even, Floats odd) {
  Ints most = hn::Max(magnitude_bits(even), magnitude_bits(odd));
  most = hn::Max(most, hn::Shuffle1032(most));
  return hn::Max(most, hn::Shuffle2301(most));
}

// Four equal lanes have the scale of a block; one of them is stored in the row's type.
template <DataType type>
HWY_INLINE void store_scales(Floats scales, std::size_t num_scales, std::byte* to) {
  std::byte lanes[hn::MaxLanes(FloatTag()) * kElement<type>];
  if constexpr (type == DataType::kFp32) {
    store_lanes(FloatTag(), scales, lanes, false);
  } else {
    store_lanes(HalfTag(), to_halves<type>(scales), lanes, false);
  }
  for (std::size_t i = 0; i < num_scales; ++i)
    std::memcpy(to + i * kElement<type>, lanes + 4 * i * kElement<type>, kElement<type>);
}

template <DataType type>
HWY_INLINE void encode_small_blocks(const EncodeRow& row) {
  const auto hidden = static_cast<std::size_t>(row.hidden);
  const std::size_t chunk = 2 * hn::Lanes(FloatTag());
  auto* const out = static_cast<std::byte*>(row.out);
  const auto encode = [&](const std::byte* from, std::byte* to, std::size_t h) FERRY_LAMBDA {
    const FloatTag floats;
    fetch_next(row, h * kElement<type>, chunk * kElement<type>);
    Floats even, odd;
    load_pairs<type>(from, even, odd);
    const Ints most = block_maxima(even, odd);
    const auto finite = hn::RebindMask(floats, hn::Lt(most, hn::Set(IntTag(), kFloatInfinity)));
    const Floats share = hn::Mul(hn::BitCast(floats, most), hn::Set(floats, kShare));
    const Floats nan = hn::BitCast(floats, hn::Set(WordTag(), kFloatNan));
    const Floats scale = hn::IfThenElse(finite, share, nan);
    const auto numbers = hn::RebindMask(WordTag(), hn::Gt(scale, hn::Zero(floats)));  // false: NaN
    store_code_pairs(hn::IfThenElseZero(numbers, block_code(even, scale)),
                     hn::IfThenElseZero(numbers, block_code(odd, scale)), to);
    store_scales<type>(scale, num_blocks(std::min(chunk, hidden - h), kSmallBlock),
                       out + scale_at<type, kSmallBlock>(row.hidden, h));
  };
  for_each_chunk<kElement<type>, 1>(static_cast<const std::byte*>(row.row), out, hidden, encode);
}

// Before they are used, scales are copied to as many floats as there are lanes that need them.
template <DataType type>
HWY_INLINE void decode_small_blocks(const DecodeRow& row) {
  constexpr std::size_t kSegment = 2 * kSmallBlock * kMaxChunk;
  constexpr std::size_t kCopies = kPaired<type> ? kSmallBlock / 2 : kSmallBlock;
  const auto* const encoded = static_cast<const std::byte*>(row.encoded);
  auto* const out = static_cast<std::byte*>(row.out);
  float scales[kSegment / kSmallBlock];
  float spread[kSegment / kSmallBlock * kCopies + kMaxChunk] = {};  // room for a short last chunk
  const auto decode = [&](const std::byte* from, std::byte* to, std::size_t h) FERRY_LAMBDA {
    Words a, b;
    load_codes<kPaired<type>>(from, a, b);
    const float* scale = &spread[h / kSmallBlock * kCopies];
    const Floats first = hn::LoadU(FloatTag(), scale);
    const Floats second =
        kPaired<type> ? first : hn::LoadU(FloatTag(), scale + hn::Lanes(FloatTag()));
    store_chunk<type, kPaired<type>>(hn::Mul(int8_to_float(a), first),
                                     hn::Mul(int8_to_float(b), second), to, false);
  };
  const auto decode_segment = [&](std::size_t begin, std::size_t n) FERRY_LAMBDA {
    const std::size_t num_scales = num_blocks(n, kSmallBlock);
    load_row_floats<type>(encoded + scale_at<type, kSmallBlock>(row.hidden, begin), num_scales,
                          scales);
    for (std::size_t i = 0; i < num_scales; ++i)
      std::fill_n(&spread[i * kCopies], kCopies, scales[i]);
    for_each_chunk<1, kElement<type>>(encoded + begin, out + begin * kElement<type>, n, decode);
  };
  for_each_group<kSegment>(static_cast<std::size_t>(row.hidden), decode_segment);
}

#else

template <DataType type>
HWY_INLINE void encode_small_blocks(const EncodeRow& row) {
  encode_blocks<type, kSmallBlock>(row);
}

template <DataType type>
HWY_INLINE void decode_small_blocks(const DecodeRow& row) {
  decode_blocks<type, kSmallBlock>(row);
}

#endif

void clear_padding(const EncodeRow& row) {
  const auto hidden = static_cast<std::size_t>(row.hidden);
  std::memset(static_cast<std::byte*>(row.out) + hidden, 0, padded_int8_bytes(hidden) - hidden);
}

void int8_8_from_row(const EncodeRow& row) {
  clear_padding(row);
  with_type(row.row_type, [&row]<DataType type>() FERRY_LAMBDA { encode_small_blocks<type>(row); });
}

void int8_128_from_row(const EncodeRow& row) {
  clear_padding(row);
  with_type(row.row_type,
            [&row]<DataType type>() FERRY_LAMBDA { encode_blocks<type, kGroup>(row); });
}

void row_from_int8_8(const DecodeRow& row) {
  with_type(row.row_type, [&row]<DataType type>() FERRY_LAMBDA { decode_small_blocks<type>(row); });
}

void row_from_int8_128(const DecodeRow& row) {
  with_type(row.row_type,
            [&row]<DataType type>() FERRY_LAMBDA { decode_blocks<type, kGroup>(row); });
}

}  // namespace ferry::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ferry::internal {

HWY_EXPORT(int8_8_from_row);
HWY_EXPORT(int8_128_from_row);
HWY_EXPORT(row_from_int8_8);
HWY_EXPORT(row_from_int8_128);

void encode_int8_8(const EncodeRow& row) noexcept { HWY_DYNAMIC_DISPATCH(int8_8_from_row)(row); }
void encode_int8_128(const EncodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(int8_128_from_row)(row);
}
void decode_int8_8(const DecodeRow& row) noexcept { HWY_DYNAMIC_DISPATCH(row_from_int8_8)(row); }
void decode_int8_128(const DecodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(row_from_int8_128)(row);
}

}  // namespace ferry::internal
#endif
