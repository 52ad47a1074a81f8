// to_float and from_float against real-number arithmetic, and the vector conversions of every SIMD
// target against them.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernel_fixtures.h"
#include "kernels/kernels.h"
#include "reference_formats.h"

namespace ferry::internal::testing {
namespace {

struct NamedFormat {
  DataType type;
  HalfFormat format;
};
constexpr NamedFormat kFormats[] = {{DataType::kBf16, kBf16Format}, {DataType::kFp16, kFp16Format}};

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

// Every 16-bit value, the float half way to the next one, the neighbours of both, and a sweep over
// all floats.
std::vector<float> interesting_floats() {
  std::vector<float> values;
  for (const NamedFormat& named : kFormats) {
    for (std::uint32_t half = 0; half < 0x10000; ++half) {
      const std::uint32_t exact =
          bits_of(half_to_float(static_cast<std::uint16_t>(half), named.format));
      const std::uint32_t middle = named.type == DataType::kBf16 ? 0x8000 : 0x1000;
      for (const std::uint32_t bits :
           {exact - 1, exact, exact + 1, exact + middle - 1, exact + middle, exact + middle + 1}) {
        values.push_back(std::bit_cast<float>(bits));
      }
    }
  }
  // The middles between the subnormals of fp16 are not half way in the bits of a float.
  for (int n = 0; n <= 2048; ++n) {
    const float middle = std::ldexp(static_cast<float>(n) + 0.5f, -24);
    for (const float value : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1.0f)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  return values;
}

TEST(FloatFormats, EveryHalfBecomesItsValue) {
  for (const NamedFormat& named : kFormats) {
    for (std::uint32_t half = 0; half < 0x10000; ++half) {
      const auto bits = static_cast<std::uint16_t>(half);
      const float expected = half_to_float(bits, named.format);
      const float value = to_float(&bits, named.type);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << half;
        ASSERT_EQ(bits_of(value) | 0x400000, bits_of(expected) | 0x400000) << half;
      } else {
        ASSERT_EQ(bits_of(value), bits_of(expected)) << half;
      }
    }
  }
}

TEST(FloatFormats, FloatsRoundToNearestEven) {
  for (const float value : interesting_floats()) {
    for (const NamedFormat& named : kFormats) {
      std::uint16_t half = 0;
      from_float(value, &half, named.type);
      ASSERT_EQ(half, float_to_half(value, named.format)) << std::hex << bits_of(value);
    }
  }
}

TEST(FloatFormats, Fp32PassesUnchanged) {
  for (const std::uint32_t bits : {0u, 0x80000000u, 1u, 0x7f800001u, 0xffc01234u}) {
    std::uint32_t stored = 0;
    from_float(std::bit_cast<float>(bits), &stored, DataType::kFp32);
    EXPECT_EQ(stored, bits);
    EXPECT_EQ(bits_of(to_float(&bits, DataType::kFp32)), bits);
  }
}

// The sum of one row equals the row, except that -0 becomes +0 and NaNs become quiet.
template <typename In, typename Out>
std::vector<Out> convert(const std::vector<In>& in, DataType in_type, DataType out_type) {
  std::vector<Out> out(in.size());
  const void* row = in.data();
  reduce_rows({.rows = &row,
               .num_rows = 1,
               .row_type = in_type,
               .out = out.data(),
               .out_type = out_type,
               .hidden = static_cast<std::int64_t>(in.size())});
  return out;
}

std::uint32_t sum_bits(float value) {
  const std::uint32_t bits = bits_of(value);
  if (std::isnan(value)) return bits | 0x400000;
  return value == 0.0f ? 0 : bits;
}

TEST(FloatFormats, VectorsReadEveryHalfAsScalarsDo) {
  std::vector<std::uint16_t> halves(0x10000);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  for_each_target([&] {
    for (const NamedFormat& named : kFormats) {
      const auto floats =
          convert<std::uint16_t, std::uint32_t>(halves, named.type, DataType::kFp32);
      for (std::size_t i = 0; i < halves.size(); ++i) {
        ASSERT_EQ(floats[i], sum_bits(to_float(&halves[i], named.type)))
            << data_type_name(named.type) << " " << i;
      }
    }
  });
}

TEST(FloatFormats, VectorsRoundEveryFloatAsScalarsDo) {
  const std::vector<float> values = interesting_floats();
  for_each_target([&] {
    for (const NamedFormat& named : kFormats) {
      const auto halves = convert<float, std::uint16_t>(values, DataType::kFp32, named.type);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float sum = std::bit_cast<float>(sum_bits(values[i]));
        ASSERT_EQ(halves[i], float_to_half(sum, named.format)) << std::hex << bits_of(values[i]);
      }
    }
  });
}

}  // namespace
}  // namespace ferry::internal::testing
