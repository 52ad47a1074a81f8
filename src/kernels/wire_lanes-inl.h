// Chunks of rows as the wire formats need them, for one SIMD target: even and odd elements apart on
// the way into a format, so that two codes meet in a lane by a shift; magnitudes of a row as
// integers, which order floats, infinity and NaN in one way.
#if defined(FERRY_KERNELS_WIRE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FERRY_KERNELS_WIRE_LANES_INL_H_
#undef FERRY_KERNELS_WIRE_LANES_INL_H_
#else
#define FERRY_KERNELS_WIRE_LANES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/float_formats.h"
#include "kernels/kernels.h"
#include "kernels/lanes-inl.h"
#include "kernels/wire_kernels.h"

// Loops take their bodies as lambdas; a body that is not inlined loses every constant it uses.
#undef FERRY_LAMBDA
#define FERRY_LAMBDA __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace ferry::internal::HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<FloatTag>;
using ByteTag = hn::Rebind<std::uint8_t, FloatTag>;
using Ints = hn::Vec<IntTag>;

inline constexpr std::size_t kMaxChunk = 2 * hn::MaxLanes(FloatTag());

template <DataType type>
inline constexpr std::size_t kElement = type == DataType::kFp32 ? 4 : 2;

// Calls body.operator()<type>().
template <class Body>
HWY_INLINE void with_type(DataType type, Body body) {
  switch (type) {
    case DataType::kBf16: return body.template operator()<DataType::kBf16>();
    case DataType::kFp16: return body.template operator()<DataType::kFp16>();
    default: return body.template operator()<DataType::kFp32>();
  }
}

// Divides n elements into chunks, and calls body(from, to, h) for each; h is the index of its first
// element. The elements behind the last whole chunk are copied to a chunk that is filled up with
// zeros, and only their results are written. from_element, to_element: bytes of an element; if
// to_element is 0, nothing is written.
template <std::size_t from_element, std::size_t to_element, class Body>
HWY_INLINE void for_each_chunk(const std::byte* from, std::byte* to, std::size_t n, Body body) {
  const std::size_t chunk = 2 * hn::Lanes(FloatTag());
  std::size_t h = 0;
  for (; h + chunk <= n; h += chunk) body(from + h * from_element, to + h * to_element, h);
  if (h == n) return;
  std::byte last_from[kMaxChunk * from_element] = {};
  std::byte last_to[std::max<std::size_t>(1, kMaxChunk * to_element)];
  std::memcpy(last_from, from + h * from_element, (n - h) * from_element);
  body(last_from, last_to, h);
  if constexpr (to_element != 0) std::memcpy(to + h * to_element, last_to, (n - h) * to_element);
}

// Calls body(first, size) for each group of n elements; the last may be shorter. The call is
// written twice, so that the loops over whole groups have a known length.
template <std::size_t group, class Body>
HWY_INLINE void for_each_group(std::size_t n, Body body) {
  std::size_t first = 0;
  for (; first + group <= n; first += group) body(first, group);
  if (first < n) body(first, n - first);
}

// The elements of a chunk: 0, 2, 4, ... and 1, 3, 5, ...
template <DataType type>
HWY_INLINE void load_pairs(const std::byte* from, Floats& even, Floats& odd) {
#if HWY_TARGET == HWY_SCALAR
  load_chunk<type, false>(from, even, odd);
#else
  if constexpr (type == DataType::kBf16) {
    load_chunk<type, true>(from, even, odd);
  } else {
    Floats low, high;
    load_chunk<type, false>(from, low, high);
    even = hn::ConcatEven(FloatTag(), high, low);
    odd = hn::ConcatOdd(FloatTag(), high, low);
  }
#endif
}

// Loads n elements as floats.
template <DataType type>
HWY_INLINE void load_row_floats(const std::byte* from, std::size_t n, float* to) {
  for_each_chunk<kElement<type>, sizeof(float)>(
      from, reinterpret_cast<std::byte*>(to), n,
      [](const std::byte* in, std::byte* out, std::size_t) FERRY_LAMBDA {
        Floats a, b;
        load_chunk<type, false>(in, a, b);
        store_chunk<DataType::kFp32, false>(a, b, out, false);
      });
}

// The lowest bytes of the lanes, one per element. The other bytes of the lanes are dropped.
HWY_INLINE void store_code_pairs(Words even, Words odd, std::byte* to) {
  const Words both = hn::OrAnd(hn::ShiftLeft<8>(odd), even, hn::Set(WordTag(), 0xff));
  store_lanes(HalfTag(), hn::TruncateTo(HalfTag(), both), to, false);
}

// Loads a byte per element, in the order of load_chunk<type, paired>.
template <bool paired>
HWY_INLINE void load_codes(const std::byte* from, Words& a, Words& b) {
  const WordTag words;
  if constexpr (paired) {
    const Words both = hn::PromoteTo(words, load_lanes(HalfTag(), from));
    a = hn::And(both, hn::Set(words, 0xff));
    b = hn::ShiftRight<8>(both);
  } else {
    a = hn::PromoteTo(words, load_lanes(ByteTag(), from));
    b = hn::PromoteTo(words, load_lanes(ByteTag(), from + hn::Lanes(FloatTag())));
  }
}

// The order in which decoded elements are held until they are stored.
template <DataType type>
inline constexpr bool kPaired = type == DataType::kBf16;

HWY_INLINE Floats int8_to_float(Words code) {
  const Ints wide = hn::ShiftRight<24>(hn::BitCast(IntTag(), hn::ShiftLeft<24>(code)));
  return hn::ConvertTo(FloatTag(), wide);
}

// Multiplies n int8 elements by a scale.
template <DataType type>
HWY_INLINE void scale_int8(const std::byte* from, std::size_t n, float scale, std::byte* to) {
  for_each_chunk<1, kElement<type>>(
      from, to, n, [scale](const std::byte* in, std::byte* out, std::size_t) FERRY_LAMBDA {
        const Floats scales = hn::Set(FloatTag(), scale);
        Words a, b;
        load_codes<kPaired<type>>(in, a, b);
        store_chunk<type, kPaired<type>>(hn::Mul(int8_to_float(a), scales),
                                         hn::Mul(int8_to_float(b), scales), out, false);
      });
}

// rint(value) as a two's complement number in the lowest bits; abs value < 2^22. The addition of
// 1.5 * 2^23, whose last place is 1, rounds.
HWY_INLINE Words nearest_in_low_bits(Floats value) {
  return hn::BitCast(WordTag(), hn::Add(value, hn::Set(FloatTag(), 12582912.0F)));
}

HWY_INLINE Ints magnitude_bits(Floats value) { return hn::BitCast(IntTag(), hn::Abs(value)); }

// The integer type of an element's bits without the sign.
template <DataType type>
using Magnitude = std::conditional_t<type == DataType::kFp32, std::int32_t, std::int16_t>;

template <DataType type>
HWY_INLINE std::uint32_t float_bits_of(Magnitude<type> magnitude) {
  const auto bits = static_cast<std::uint32_t>(magnitude);
  if constexpr (type == DataType::kFp32) return bits;
  if constexpr (type == DataType::kBf16) return bits << 16;
  return std::bit_cast<std::uint32_t>(fp16_to_float(static_cast<std::uint16_t>(bits)));
}

// The value of the largest lane.
template <class Tag>
HWY_INLINE hn::TFromD<Tag> largest_lane(Tag tag, hn::Vec<Tag> lanes) {
  if constexpr (sizeof(hn::TFromD<Tag>) == 4 || HWY_TARGET == HWY_SCALAR) {
    return hn::GetLane(hn::MaxOfLanes(tag, lanes));
  } else {
#if HWY_TARGET != HWY_SCALAR
    const Ints both = hn::BitCast(IntTag(), lanes);
    const Ints low = hn::ShiftRight<16>(hn::ShiftLeft<16>(both));
    const Ints most = hn::Max(hn::ShiftRight<16>(both), low);
    return static_cast<std::int16_t>(hn::GetLane(hn::MaxOfLanes(IntTag(), most)));
#endif
  }
}

// The largest of op(magnitude) over n elements, at least 0; op takes lanes with their tag.
template <DataType type, class Op>
HWY_INLINE Magnitude<type> largest_magnitude(const std::byte* row, std::size_t n, Op op) {
  using Lane = Magnitude<type>;
  const hn::ScalableTag<Lane> tag;
  const std::size_t step = hn::Lanes(tag);
  auto most = hn::Zero(tag);
  std::size_t h = 0;
  for (; h + step <= n; h += step)
    most = hn::Max(most, op(tag, load_lanes(tag, row + h * sizeof(Lane))));
  if (h < n) {
    std::byte last[hn::MaxLanes(tag) * sizeof(Lane)] = {};
    std::memcpy(last, row + h * sizeof(Lane), (n - h) * sizeof(Lane));
    most = hn::Max(most, op(tag, load_lanes(tag, last)));
  }
  return largest_lane(tag, most);
}

// The bits of the largest abs x as a float32; from kFloatInfinity on there is an infinity or a NaN.
template <DataType type>
HWY_INLINE std::uint32_t max_magnitude(const std::byte* row, std::size_t n) {
  const auto magnitude = [](auto tag, auto lanes) FERRY_LAMBDA {
    return hn::And(lanes, hn::Set(tag, std::numeric_limits<Magnitude<type>>::max()));
  };
  return float_bits_of<type>(largest_magnitude<type>(row, n, magnitude));
}

// The bits of the smallest abs x that is not zero, as a float32; there must be one.
template <DataType type>
HWY_INLINE std::uint32_t min_magnitude(const std::byte* row, std::size_t n) {
  constexpr auto kMax = std::numeric_limits<Magnitude<type>>::max();
  // max - (abs x - 1): the smallest gives the largest; a zero gives 0.
  const auto below_max = [](auto tag, auto lanes) FERRY_LAMBDA {
    const auto max = hn::Set(tag, kMax);
    const auto less_one = hn::And(hn::Sub(hn::And(lanes, max), hn::Set(tag, 1)), max);
    return hn::Sub(max, less_one);
  };
  const auto most = largest_magnitude<type>(row, n, below_max);
  return float_bits_of<type>(static_cast<Magnitude<type>>(kMax - most + 1));
}

// Prefetches a part of the row that will be encoded next, while the arithmetic of this row leaves
// memory idle.
HWY_INLINE void fetch_next(const EncodeRow& row, std::size_t begin, std::size_t bytes) {
  if (row.next == nullptr) return;
  for (std::size_t i = 0; i < bytes; i += kLineBytes)
    hwy::Prefetch(static_cast<const std::byte*>(row.next) + begin + i);
}

// Calls body(first, size, max_bits) for each group of a row, with the result of max_magnitude for
// the group. The maxima of many groups are computed ahead: the arithmetic of a group depends on its
// maximum, and a processor cannot reorder far enough to overlap that latency with the next group.
template <DataType type, std::size_t group, class Body>
HWY_INLINE void for_each_group_with_max(const EncodeRow& row, Body body) {
  constexpr std::size_t kAhead = 64;
  std::uint32_t max_bits[kAhead];
  const auto hidden = static_cast<std::size_t>(row.hidden);
  for (std::size_t begin = 0; begin < hidden; begin += kAhead * group) {
    const std::size_t n = std::min(kAhead * group, hidden - begin);
    const std::byte* from = static_cast<const std::byte*>(row.row) + begin * kElement<type>;
    for_each_group<group>(n, [&](std::size_t first, std::size_t size) FERRY_LAMBDA {
      max_bits[first / group] = max_magnitude<type>(from + first * kElement<type>, size);
    });
    for_each_group<group>(n, [&](std::size_t first, std::size_t size) FERRY_LAMBDA {
      fetch_next(row, (begin + first) * kElement<type>, size * kElement<type>);
      body(begin + first, size, max_bits[first / group]);
    });
  }
}

}  // namespace ferry::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
