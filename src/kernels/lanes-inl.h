// Rows in memory to float lanes and back, for one SIMD target; Highway includes this file once per
// target. A chunk is two vectors of floats. Plain chunks hold consecutive elements, the first half
// of them in `a`. Paired chunks (bf16 on both sides) hold the even elements in `a` and the odd ones
// in `b`: a shift and a mask instead of shuffles. Results equal those of float_formats.h bit for
// bit.
#if defined(FERRY_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FERRY_KERNELS_LANES_INL_H_
#undef FERRY_KERNELS_LANES_INL_H_
#else
#define FERRY_KERNELS_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ferry/types.h"
#include "hwy/highway.h"
#include "kernels/float_formats.h"

// Instructions that convert fp16 with IEEE rounding. Highway's emulation of them truncates and has
// no infinity.
#undef FERRY_NATIVE_FP16
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#define FERRY_NATIVE_FP16 0
#elif HWY_ARCH_ARM_A64 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || \
    HWY_TARGET == HWY_AVX3_DL
#define FERRY_NATIVE_FP16 1
#else
#define FERRY_NATIVE_FP16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace ferry::internal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using HalfTag = hn::Rebind<std::uint16_t, FloatTag>;  // as many lanes as FloatTag, half as wide
using Floats = hn::Vec<FloatTag>;
using Words = hn::Vec<WordTag>;
using Halves = hn::Vec<HalfTag>;

// Memory need not be aligned to its elements, so vectors are loaded and stored as bytes.
template <class Tag>
HWY_INLINE hn::Vec<Tag> load_lanes(Tag tag, const std::byte* from) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<Tag> lane;
  std::memcpy(&lane, from, sizeof lane);
  return hn::Set(tag, lane);
#else
  const hn::Repartition<std::uint8_t, Tag> bytes;
  return hn::BitCast(tag, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(from)));
#endif
}

// Streaming needs `to` aligned to the vector.
template <class Tag>
HWY_INLINE void store_lanes(Tag tag, hn::Vec<Tag> lanes, std::byte* to, bool streaming) {
#if HWY_TARGET == HWY_SCALAR
  (void)tag, (void)streaming;
  const hn::TFromD<Tag> lane = hn::GetLane(lanes);
  std::memcpy(to, &lane, sizeof lane);
#else
  const hn::Repartition<std::uint8_t, Tag> bytes;
  (void)tag;
  if (streaming) {
    hn::Stream(hn::BitCast(bytes, lanes), bytes, reinterpret_cast<std::uint8_t*>(to));
  } else {
    hn::StoreU(hn::BitCast(bytes, lanes), bytes, reinterpret_cast<std::uint8_t*>(to));
  }
#endif
}

// The bf16 nearest to each float, in the upper half of its lane; the lower half is not defined.
HWY_INLINE Words bf16_above(Floats value) {
  const WordTag words;
  const Words bits = hn::BitCast(words, value);
  const Words odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const Words rounded = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff)));
  const Words quiet = hn::Or(bits, hn::Set(words, kFloatQuietBit));
  return hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(value)), quiet, rounded);
}

// The bf16 nearest to each float of a paired chunk: those of `a` in the lower halves of the lanes,
// those of `b` in the upper ones. Rounding spoils a NaN only where its lower half is not 0. Rows
// and biases of bf16 have no such NaN. A weight may be one, and then all elements are NaN, so it is
// enough to test `a`.
HWY_INLINE Words bf16_pairs(Floats a, Floats b) {
  const WordTag words;
  const Words upper = hn::Set(words, 0xffff0000);
#if HWY_TARGET != HWY_SCALAR
  if (HWY_LIKELY(hn::AllFalse(FloatTag(), hn::IsNaN(a)))) {
    // The upper half of each float is kept, the lower half is cut off. The kept half is raised by
    // one when cut + 0x7fff + (kept is odd) carries out of 16 bits. AverageRound(x, y) is (x + y +
    // 1) / 2 and loses no carry: it is the top bit of the average.
    const hn::Repartition<std::uint16_t, WordTag> halves;
    const Words from_a = hn::BitCast(words, a), from_b = hn::BitCast(words, b);
    const auto kept = hn::BitCast(halves, hn::OrAnd(hn::ShiftRight<16>(from_a), from_b, upper));
    const auto cut =
        hn::BitCast(halves, hn::Or(hn::AndNot(upper, from_a), hn::ShiftLeft<16>(from_b)));
    const auto to_carry = hn::OrAnd(hn::Set(halves, 0x7ffe), kept, hn::Set(halves, 1));
    const auto carry = hn::ShiftRight<15>(hn::AverageRound(cut, to_carry));
    return hn::BitCast(words, hn::Add(kept, carry));
  }
#endif
  return hn::OrAnd(hn::ShiftRight<16>(bf16_above(a)), bf16_above(b), upper);
}

#if FERRY_NATIVE_FP16
HWY_INLINE Floats fp16_lanes_to_float(Halves half) {
  const hn::Rebind<hwy::float16_t, FloatTag> native;
  return hn::PromoteTo(FloatTag(), hn::BitCast(native, half));
}

HWY_INLINE Halves float_lanes_to_fp16(Floats value) {
  const hn::Rebind<hwy::float16_t, FloatTag> native;
  return hn::BitCast(HalfTag(), hn::DemoteTo(native, value));
}
#else
HWY_INLINE Floats fp16_lanes_to_float(Halves half) {
  const FloatTag floats;
  const WordTag words;
  const Words wide = hn::PromoteTo(words, half);
  const Words magnitude = hn::And(wide, hn::Set(words, 0x7fff));
  const Words sign = hn::ShiftLeft<16>(hn::Xor(wide, magnitude));
  const Words shifted = hn::ShiftLeft<13>(magnitude);
  const Words normal = hn::Add(shifted, hn::Set(words, kFp16Rebias));
  // A subnormal is a multiple of 2^-24: place it behind the leading one of 2^-14, then subtract
  // 2^-14.
  const Words min_normal = hn::Set(words, kFp16MinNormal);
  const Words subnormal = hn::BitCast(
      words,
      hn::Sub(hn::BitCast(floats, hn::Or(shifted, min_normal)), hn::BitCast(floats, min_normal)));
  const Words quiet =
      hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(words, 0x7c00)), hn::Set(words, kFloatQuietBit));
  const Words special = hn::Or(hn::Or(shifted, hn::Set(words, kFloatInfinity)), quiet);
  Words bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(words, 0x0400)), subnormal, normal);
  bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(words, 0x7bff)), special, bits);
  return hn::BitCast(floats, hn::Or(bits, sign));
}

HWY_INLINE Halves float_lanes_to_fp16(Floats value) {
  const FloatTag floats;
  const WordTag words;
  const Words bits = hn::BitCast(words, value);
  const Words magnitude = hn::And(bits, hn::Set(words, kFloatMagnitude));
  const Words sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  const Words odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(words, 1));
  const Words rebased = hn::Sub(magnitude, hn::Set(words, kFp16Rebias - 0xfff));
  const Words normal = hn::ShiftRight<13>(hn::Add(rebased, odd));
  // The last place of floats from 0.5 on is 2^-24, that of fp16 subnormals, so the addition of 0.5
  // rounds.
  const Floats half = hn::Set(floats, 0.5f);
  const Words subnormal = hn::Sub(hn::BitCast(words, hn::Add(hn::BitCast(floats, magnitude), half)),
                                  hn::BitCast(words, half));
  const Words payload =
      hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(words, 0x3ff)), hn::Set(words, 0x200));
  const Words above =
      hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(words, kFloatInfinity)), payload);
  const Words special = hn::Or(above, hn::Set(words, 0x7c00));
  Words result =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(words, kFp16MinNormal)), subnormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(words, kFp16Overflow - 1)), special, result);
  return hn::TruncateTo(HalfTag(), hn::Or(result, sign));
}
#endif

// Consecutive elements of a row, one vector of floats.
template <DataType type>
HWY_INLINE Floats load_floats(const std::byte* from) {
  if constexpr (type == DataType::kFp32) {
    return load_lanes(FloatTag(), from);
  } else if constexpr (type == DataType::kFp16) {
    return fp16_lanes_to_float(load_lanes(HalfTag(), from));
  } else {
    const Words wide = hn::PromoteTo(WordTag(), load_lanes(HalfTag(), from));
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(wide));
  }
}

template <DataType type>
HWY_INLINE Halves to_halves(Floats value) {
  if constexpr (type == DataType::kFp16) {
    return float_lanes_to_fp16(value);
  } else {
    return hn::TruncateTo(HalfTag(), hn::ShiftRight<16>(bf16_above(value)));
  }
}

template <DataType type, bool paired>
HWY_INLINE void load_chunk(const std::byte* from, Floats& a, Floats& b) {
  if constexpr (paired) {
    const Words both = load_lanes(WordTag(), from);
    a = hn::BitCast(FloatTag(), hn::ShiftLeft<16>(both));
    b = hn::BitCast(FloatTag(), hn::And(both, hn::Set(WordTag(), 0xffff0000)));
  } else {
    a = load_floats<type>(from);
    b = load_floats<type>(from +
                          hn::Lanes(FloatTag()) *
                              (type == DataType::kFp32 ? sizeof(float) : sizeof(std::uint16_t)));
  }
}

template <DataType type, bool paired>
HWY_INLINE void store_chunk(Floats a, Floats b, std::byte* to, bool streaming) {
  if constexpr (paired) {
    store_lanes(WordTag(), bf16_pairs(a, b), to, streaming);
  } else if constexpr (type == DataType::kFp32) {
    store_lanes(FloatTag(), a, to, streaming);
    store_lanes(FloatTag(), b, to + hn::Lanes(FloatTag()) * sizeof(float), streaming);
  } else {
#if HWY_TARGET == HWY_SCALAR
    store_lanes(HalfTag(), to_halves<type>(a), to, streaming);
    store_lanes(HalfTag(), to_halves<type>(b), to + sizeof(std::uint16_t), streaming);
#else
    // One full vector, because Highway's Stream of a half vector may write past its end.
    const hn::Repartition<std::uint16_t, FloatTag> halves;
    store_lanes(halves, hn::Combine(halves, to_halves<type>(b), to_halves<type>(a)), to, streaming);
#endif
  }
}

}  // namespace ferry::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
