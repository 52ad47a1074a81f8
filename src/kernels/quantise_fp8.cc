// The wires fp8, fp8_pow2 and fp8_ue8m0: e4m3 elements in groups of 128 that share a scale.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantise_fp8.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first: it includes this file again for each target.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/fp8_scale.h"
#include "kernels/wire_kernels.h"
#include "kernels/wire_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ferry::internal::HWY_NAMESPACE {

inline constexpr std::uint32_t kE4m3MinNormal = (127 - 6) << 23;  // 2^-6
inline constexpr std::uint32_t kE4m3Rebias = (127 - 7) << 23;

// The e4m3 nearest to each abs value in the lowest bytes; values are finite and at most a rounding
// error above 448, which saturates them. With p the value's power of two, at least 2^-6, e4m3 has
// steps of p / 8, and so have floats beside p * 2^20: the addition rounds, and leaves the number of
// steps in the lowest bits. The code is that number and 8 for each octave that p is above 2^-6:
// (bits(p) >> 20) - 968. The constant that is added has the lowest byte of -968, which is even.
HWY_INLINE Words e4m3_magnitude(Floats value) {
  const FloatTag floats;
  const WordTag words;
  const IntTag ints;
  const Floats magnitude = hn::Abs(value);
  const Ints power = hn::Max(hn::And(hn::BitCast(ints, magnitude), hn::Set(ints, kFloatInfinity)),
                             hn::Set(ints, kE4m3MinNormal));
  const Ints beside = hn::Add(power, hn::Set(ints, (20 << 23) + 56));
  const Words steps = hn::BitCast(words, hn::Add(magnitude, hn::BitCast(floats, beside)));
  return hn::Add(steps, hn::ShiftRight<20>(hn::BitCast(words, power)));
}

// value * factor as e4m3, two elements in the lowest 16 bits of each lane; factor > 0.
template <DataType type>
HWY_INLINE void store_e4m3(const std::byte* from, float factor, std::byte* to) {
  const WordTag words;
  Floats even, odd;
  load_pairs<type>(from, even, odd);
  const Floats factors = hn::Set(FloatTag(), factor);
  const Words low = e4m3_magnitude(hn::Mul(even, factors));
  const Words high = e4m3_magnitude(hn::Mul(odd, factors));
  const Words codes = hn::OrAnd(hn::ShiftLeft<8>(high), low, hn::Set(words, 0xff));
  const Words even_sign = hn::ShiftRight<24>(hn::BitCast(words, even));
  const Words odd_sign = hn::ShiftRight<16>(hn::BitCast(words, odd));
  const Words signed_low = hn::OrAnd(codes, even_sign, hn::Set(words, 0x80));
  const Words both = hn::OrAnd(signed_low, odd_sign, hn::Set(words, 0x8000));
  store_lanes(HalfTag(), hn::TruncateTo(HalfTag(), both), to, false);
}

// Except for the bias, the code is the upper bits of a float. Below 2^-6 a code has no leading one:
// 2^-6 is added and subtracted again.
HWY_INLINE Floats e4m3_to_float(Words code) {
  const FloatTag floats;
  const WordTag words;
  const Words magnitude = hn::And(code, hn::Set(words, 0x7f));
  const Words shifted = hn::ShiftLeft<20>(magnitude);
  const Words min_normal = hn::Set(words, kE4m3MinNormal);
  const Floats subnormal =
      hn::Sub(hn::BitCast(floats, hn::Or(shifted, min_normal)), hn::BitCast(floats, min_normal));
  const Words normal = hn::Add(shifted, hn::Set(words, kE4m3Rebias));
  const Words value =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(words, 8)), hn::BitCast(words, subnormal), normal);
  const Words sign = hn::ShiftLeft<24>(hn::Xor(code, magnitude));
  return hn::BitCast(floats, hn::Or(value, sign));
}

// Stores the scale of a group, as a float or as its exponent in a byte.
HWY_INLINE void put_scale(void* scales, std::size_t group, std::uint32_t bits, Wire wire) {
  if (wire == Wire::kFp8Ue8m0) {
    put(scales, group, static_cast<std::uint8_t>(bits >> 23));
  } else {
    put(scales, group, bits);
  }
}

HWY_INLINE float scale_at(const void* scales, std::size_t group, Wire wire) {
  if (wire != Wire::kFp8Ue8m0) return at<float>(scales, group);
  const std::uint32_t exponent = at<std::uint8_t>(scales, group);
  return std::bit_cast<float>(exponent == 255 ? kFloatNan : exponent << 23);
}

template <DataType type>
HWY_INLINE void encode_groups(const EncodeRow& row, Wire wire) {
  const auto encode = [&](std::size_t first, std::size_t size,
                          std::uint32_t max_bits) FERRY_LAMBDA {
    const std::byte* from = static_cast<const std::byte*>(row.row) + first * kElement<type>;
    std::byte* to = static_cast<std::byte*>(row.out) + first;
    if (max_bits >= kFloatInfinity) {
      std::memset(to, 0, size);
      put_scale(row.scales, first / kGroup, kFloatNan, wire);
      return;
    }
    const Fp8Scale group = fp8_scale(std::max(std::bit_cast<float>(max_bits), 1e-4F), wire);
    put_scale(row.scales, first / kGroup, std::bit_cast<std::uint32_t>(group.scale), wire);
    for_each_chunk<kElement<type>, 1>(
        from, to, size, [&group](const std::byte* in, std::byte* out, std::size_t) FERRY_LAMBDA {
          store_e4m3<type>(in, group.factor, out);
        });
  };
  for_each_group_with_max<type, kGroup>(row, encode);
}

template <DataType type>
HWY_INLINE void decode_groups(const DecodeRow& row, Wire wire) {
  const auto decode = [&](std::size_t first, std::size_t size) FERRY_LAMBDA {
    const float scale = scale_at(row.scales, first / kGroup, wire);
    for_each_chunk<1, kElement<type>>(
        static_cast<const std::byte*>(row.encoded) + first,
        static_cast<std::byte*>(row.out) + first * kElement<type>, size,
        [scale](const std::byte* from, std::byte* to, std::size_t) FERRY_LAMBDA {
          const Floats scales = hn::Set(FloatTag(), scale);
          Words a, b;
          load_codes<kPaired<type>>(from, a, b);
          store_chunk<type, kPaired<type>>(hn::Mul(e4m3_to_float(a), scales),
                                           hn::Mul(e4m3_to_float(b), scales), to, false);
        });
  };
  for_each_group<kGroup>(static_cast<std::size_t>(row.hidden), decode);
}

void fp8_from_row(const EncodeRow& row, Wire wire) {
  const std::size_t groups = num_blocks(static_cast<std::size_t>(row.hidden), kGroup);
  for (std::size_t unused = groups; wire == Wire::kFp8Ue8m0 && unused % 4 != 0; ++unused)
    put(row.scales, unused, std::uint8_t{0});
  with_type(row.row_type, [&]<DataType type>() FERRY_LAMBDA { encode_groups<type>(row, wire); });
}

void row_from_fp8(const DecodeRow& row, Wire wire) {
  with_type(row.row_type, [&]<DataType type>() FERRY_LAMBDA { decode_groups<type>(row, wire); });
}

}  // namespace ferry::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ferry::internal {

HWY_EXPORT(fp8_from_row);
HWY_EXPORT(row_from_fp8);

void encode_fp8(const EncodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(fp8_from_row)(row, Wire::kFp8);
}
void encode_fp8_pow2(const EncodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(fp8_from_row)(row, Wire::kFp8Pow2);
}
void encode_fp8_ue8m0(const EncodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(fp8_from_row)(row, Wire::kFp8Ue8m0);
}
void decode_fp8(const DecodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(row_from_fp8)(row, Wire::kFp8);
}
void decode_fp8_ue8m0(const DecodeRow& row) noexcept {
  HWY_DYNAMIC_DISPATCH(row_from_fp8)(row, Wire::kFp8Ue8m0);
}

}  // namespace ferry::internal
#endif
