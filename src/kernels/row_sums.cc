// constant_summand and normalise_row. Rows become floats a strip at a time; the arithmetic is plain
// loops over 16 sums, which the compiler vectorises.
#include "kernels/row_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/row_sums.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first: it includes this file again for each target.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/wire_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ferry::internal::HWY_NAMESPACE {

inline constexpr std::size_t kSums = 16;
inline constexpr std::size_t kStrip = 256;  // a multiple of kSums; floats of a few rows fit the L1

using Strip = float[kStrip];

// Elements [h, h + size) of a row, and zeros behind them, which do not change a sum.
template <DataType type>
HWY_NOINLINE void load_strip(const void* row, std::size_t h, std::size_t size, Strip& strip) {
  if (size < kStrip) std::fill(strip + size, strip + kStrip, 0.0F);
  load_row_floats<type>(static_cast<const std::byte*>(row) + h * kElement<type>, size, strip);
}

template <DataType type>
HWY_NOINLINE void store_strip(const Strip& strip, std::size_t h, std::size_t size, void* row) {
  for_each_chunk<sizeof(float), kElement<type>>(
      reinterpret_cast<const std::byte*>(strip), static_cast<std::byte*>(row) + h * kElement<type>,
      size, [](const std::byte* from, std::byte* to, std::size_t) FERRY_LAMBDA {
        Floats a, b;
        load_chunk<DataType::kFp32, false>(from, a, b);
        store_chunk<type, false>(a, b, to, false);
      });
}

// Calls body(h, size) for each strip of a row.
template <class Body>
HWY_INLINE void for_each_strip(std::int64_t hidden, Body body) {
  const auto end = static_cast<std::size_t>(hidden);
  for (std::size_t h = 0; h < end; h += kStrip) body(h, std::min(kStrip, end - h));
}

struct PartialSums {
  float sums[kSums] = {};

  // Adds product(i) for each channel of a strip.
  template <class Product>
  HWY_INLINE void add(Product product) {
    for (std::size_t i = 0; i < kStrip; i += kSums) {
      for (std::size_t j = 0; j < kSums; ++j) sums[j] += product(i + j);
    }
  }

  float total() {
    for (std::size_t distance = kSums / 2; distance > 0; distance /= 2) {
      for (std::size_t j = 0; j < distance; ++j) sums[j] += sums[j + distance];
    }
    return sums[0];
  }
};

float exponential(float value) { return static_cast<float>(std::exp(static_cast<double>(value))); }

template <DataType type>
HWY_NOINLINE void constant_summand_of(const ConstantSummand& args) {
  PartialSums dot1, dot2;
  Strip x, other;
  for_each_strip(args.hidden, [&](std::size_t h, std::size_t size) FERRY_LAMBDA {
    load_strip<type>(args.x, h, size, x);
    load_strip<type>(args.alpha1, h, size, other);
    dot1.add([&](std::size_t i) FERRY_LAMBDA { return other[i] * x[i]; });
    load_strip<type>(args.alpha2, h, size, other);
    dot2.add([&](std::size_t i) FERRY_LAMBDA { return other[i] * x[i]; });
  });
  const float d1 = dot1.total(), d2 = dot2.total();
  const float e1 = exponential(d1 - std::max(d1, d2));
  const float e2 = exponential(d2 - std::max(d1, d2));
  const float share1 = e1 / (e1 + e2), share2 = e2 / (e1 + e2);
  for_each_strip(args.hidden, [&](std::size_t h, std::size_t size) FERRY_LAMBDA {
    load_strip<type>(args.x, h, size, x);
    load_strip<type>(args.v, h, size, other);
    for (std::size_t i = 0; i < size; ++i) args.out[h + i] = share1 * x[i] + share2 * other[i];
  });
}

template <DataType type>
HWY_NOINLINE void normalise(const NormaliseRow& args) {
  const float share = 1.0F / static_cast<float>(args.hidden);
  PartialSums squares;
  Strip z, gamma;
  for_each_strip(args.hidden, [&](std::size_t h, std::size_t size) FERRY_LAMBDA {
    load_strip<DataType::kFp32>(args.z, h, size, z);
    squares.add([&](std::size_t i) FERRY_LAMBDA { return z[i] * z[i] * share; });
    store_strip<type>(z, h, size, args.out);
  });
  const float rstd = 1.0F / std::sqrt(squares.total() + args.epsilon);
  for_each_strip(args.hidden, [&](std::size_t h, std::size_t size) FERRY_LAMBDA {
    load_strip<DataType::kFp32>(args.z, h, size, z);
    for (float& value : z) value *= rstd;
    store_strip<type>(z, h, size, args.y);  // rounds
    load_strip<type>(args.y, h, size, z);
    load_strip<type>(args.gamma, h, size, gamma);
    for (std::size_t i = 0; i < kStrip; ++i) z[i] *= gamma[i];
    store_strip<type>(z, h, size, args.y);
  });
  *args.rstd = rstd;
}

void constant_summand_of_any(const ConstantSummand& args) {
  with_type(args.type, [&args]<DataType type>() FERRY_LAMBDA { constant_summand_of<type>(args); });
}

void normalise_any(const NormaliseRow& args) {
  with_type(args.type, [&args]<DataType type>() FERRY_LAMBDA { normalise<type>(args); });
}

}  // namespace ferry::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ferry::internal {

HWY_EXPORT(constant_summand_of_any);
HWY_EXPORT(normalise_any);

void constant_summand(const ConstantSummand& args) noexcept {
  HWY_DYNAMIC_DISPATCH(constant_summand_of_any)(args);
}

void normalise_row(const NormaliseRow& args) noexcept { HWY_DYNAMIC_DISPATCH(normalise_any)(args); }

}  // namespace ferry::internal
#endif
