// Every wire format on every SIMD target against the oracle's slow loops, bit for bit.
#include "kernels/wire_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernel_fixtures.h"
#include "oracle/wire.h"

namespace ferry::internal::testing {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DataType kTypes[] = {DataType::kBf16, DataType::kFp16, DataType::kFp32};
constexpr Wire kWires[] = {Wire::kInt8, Wire::kInt8Static, Wire::kFp8, Wire::kFp8Pow2,
                           Wire::kFp8Ue8m0};
constexpr CombineWire kCombineWires[] = {CombineWire::kInt8Block8, CombineWire::kInt8Block128,
                                         CombineWire::kLogfmt10};

enum class FactorKind { kNone, kOne, kPerChannel };
constexpr FactorKind kFactorKinds[] = {FactorKind::kNone, FactorKind::kOne,
                                       FactorKind::kPerChannel};

bool takes_factors(Wire wire) { return wire == Wire::kInt8 || wire == Wire::kInt8Static; }

// The distributions of the elements of a test's row.
enum class Values {
  kNormal,      // around 1
  kWide,        // many magnitudes, beyond what fp16 holds as well
  kTies,        // halves of small integers, all signs: steps fall between two codes
  kOctaves,     // powers of two and the next bf16, 16 octaves from the smallest to the largest
  kSubnormal,   // of the row's type, and zeros
  kTiny,        // the smallest subnormals
  kHuge,        // near the largest number of the type
  kBits,        // any bit pattern: NaN and infinities, nearly every block
  kFiniteBits,  // any bit pattern that is a number
  kZeros,       // of both signs
  kFewSpecials  // normal, but one element is NaN or infinite
};
constexpr Values kAllValues[] = {Values::kNormal,  Values::kWide,       Values::kTies,
                                 Values::kOctaves, Values::kSubnormal,  Values::kTiny,
                                 Values::kHuge,    Values::kBits,       Values::kFiniteBits,
                                 Values::kZeros,   Values::kFewSpecials};

std::uint32_t exponent_mask(DataType type) {
  if (type == DataType::kFp16) return 0x7c00;
  return type == DataType::kBf16 ? 0x7f80 : 0x7f800000;
}

std::uint32_t sign_bit(DataType type) { return type == DataType::kFp32 ? 0x80000000 : 0x8000; }

std::uint32_t lowest_bit(std::uint32_t bits) { return bits & (~bits + 1); }

// A bit pattern of `type`: its lowest bytes.
std::uint32_t random_bits(Values values, DataType type, std::mt19937& random) {
  const auto bits = static_cast<std::uint32_t>(random());
  const std::uint32_t exponent = exponent_mask(type);
  switch (values) {
    case Values::kSubnormal: return random() % 8 == 0 ? bits & sign_bit(type) : bits & ~exponent;
    case Values::kTiny: return bits & (sign_bit(type) | 0xff);
    case Values::kHuge: return (bits | exponent) ^ lowest_bit(exponent) << random() % 3;
    case Values::kFiniteBits:
      return (bits & exponent) == exponent ? bits ^ lowest_bit(exponent) : bits;
    case Values::kZeros: return bits & sign_bit(type);
    default: return bits;
  }
}

float random_value(Values values, std::mt19937& random) {
  std::normal_distribution<float> normal;
  switch (values) {
    case Values::kWide: return std::ldexp(normal(random), static_cast<int>(random() % 48) - 30);
    case Values::kTies: return static_cast<float>(static_cast<int>(random() % 509) - 254) / 2;
    case Values::kOctaves:
      return std::ldexp(random() % 32 == 0 ? 1.0078125F : 1.0F,
                        static_cast<int>(random() % 17) - 10);
    default: return random() % 16 == 0 ? 0.0F : normal(random);
  }
}

void fill(GuardedRow& row, Values values, DataType type, std::mt19937& random) {
  const std::size_t width = element_bytes(type);
  for (std::size_t i = 0; i < row.bytes(); i += width) {
    if (values >= Values::kSubnormal && values <= Values::kZeros) {
      const std::uint32_t bits = random_bits(values, type, random);
      std::memcpy(row.data() + i, &bits, width);
    } else {
      from_float(random_value(values, random), row.data() + i, type);
    }
  }
  if (values != Values::kFewSpecials || row.bytes() == 0) return;
  const float specials[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
  const std::size_t at = random() % (row.bytes() / width) * width;
  from_float(specials[random() % 3], row.data() + at, type);
}

std::vector<float> random_factors(FactorKind kind, std::size_t hidden, std::mt19937& random) {
  std::vector<float> factors(kind == FactorKind::kNone ? 0 : kind == FactorKind::kOne ? 1 : hidden);
  std::normal_distribution<float> normal;
  const int exponent = static_cast<int>(random() % 60) - 30;
  for (float& factor : factors) factor = std::ldexp(normal(random), exponent);
  const float specials[] = {
      0.0F,  -0.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
      1e38F, 1e-40F};
  if (!factors.empty() && random() % 8 == 0)
    factors[random() % factors.size()] = specials[random() % std::size(specials)];
  return factors;
}

struct Encoded {
  Bytes row, scales;
};

// A prefetch changes no byte, whatever address it has.
const void* random_next(const GuardedRow& row) {
  return row.bytes() % 2 == 0 ? row.data() : nullptr;
}

// Decodes from the memory that the kernel wrote; checks the guards.
Encoded encode(const WireFormat& format, const GuardedRow& row, DataType type,
               const RowFactors& factors, std::size_t offset) {
  const auto hidden = static_cast<std::int64_t>(row.bytes() / element_bytes(type));
  GuardedRow out(format.encoded_bytes(hidden, type), offset, kOutputGuard);
  GuardedRow scales(static_cast<std::size_t>(format.num_scales(hidden)) * 4, offset / 2,
                    kOutputGuard);
  format.encode({.row = row.data(),
                 .row_type = type,
                 .hidden = hidden,
                 .factors = factors,
                 .out = out.data(),
                 .scales = scales.data(),
                 .next = random_next(row)});
  EXPECT_TRUE(out.guards_intact());
  EXPECT_TRUE(scales.guards_intact());
  return {out.copy(), scales.copy()};
}

// Decodes from a copy of exactly the encoded bytes.
Bytes decode(const WireFormat& format, const Encoded& encoded, DataType type, std::size_t hidden,
             std::size_t offset) {
  GuardedRow from(encoded.row.size(), offset, kInputGuard);
  std::memcpy(from.data(), encoded.row.data(), from.bytes());
  GuardedRow out(hidden * element_bytes(type), offset + 1, kOutputGuard);
  format.decode({.encoded = from.data(),
                 .scales = encoded.scales.data(),
                 .row_type = type,
                 .hidden = static_cast<std::int64_t>(hidden),
                 .out = out.data()});
  EXPECT_TRUE(out.guards_intact());
  return out.copy();
}

Bytes rounded(const std::vector<float>& values, DataType type) {
  Bytes row(values.size() * element_bytes(type));
  for (std::size_t h = 0; h < values.size(); ++h)
    from_float(values[h], &row[h * element_bytes(type)], type);
  return row;
}

void check_wire(Wire wire, const GuardedRow& row, DataType type, std::span<const float> factors,
                std::mt19937& random) {
  const WireFormat& format = wire_format(wire);
  const std::size_t hidden = row.bytes() / element_bytes(type);
  const ReferenceEncoded expected =
      reference_encode(wire, {row.data(), row.bytes()}, type, factors);
  const RowFactors row_factors{factors.empty() ? nullptr : factors.data(), factors.size() > 1};
  const Encoded encoded = encode(format, row, type, row_factors, random());
  ASSERT_EQ(encoded.scales, expected.scales);
  ASSERT_EQ(encoded.row, expected.row);
  ASSERT_EQ(decode(format, encoded, type, hidden, random()),
            rounded(reference_decode(wire, expected), type));
}

// The bytes behind an encoded row of logfmt10 are unchanged.
void check_combine_wire(CombineWire wire, const GuardedRow& row, DataType type,
                        std::mt19937& random) {
  const WireFormat& format = wire_format(wire);
  const std::size_t hidden = row.bytes() / element_bytes(type);
  const std::span<const std::byte> bytes{row.data(), row.bytes()};
  const Bytes expected = reference_encode(wire, bytes, type);
  Encoded encoded = encode(format, row, type, {}, random());
  ASSERT_LE(expected.size(), encoded.row.size());
  for (std::size_t i = expected.size(); i < encoded.row.size(); ++i)
    ASSERT_EQ(encoded.row[i], kOutputGuard);
  encoded.row.resize(expected.size());
  ASSERT_EQ(encoded.row, expected);
  ASSERT_EQ(decode(format, encoded, type, hidden, random()), reference_travel(wire, bytes, type));
}

// Every format, with every kind of factors that it takes, on one row.
void check_row(const GuardedRow& row, DataType type, std::mt19937& random) {
  for (const Wire wire : kWires) {
    for (const FactorKind kind : kFactorKinds) {
      if (kind != FactorKind::kNone && !takes_factors(wire)) continue;
      SCOPED_TRACE(std::string(wire_name(wire)) + ", factors " +
                   std::to_string(static_cast<int>(kind)));
      const std::size_t hidden = row.bytes() / element_bytes(type);
      check_wire(wire, row, type, random_factors(kind, hidden, random), random);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  for (const CombineWire wire : kCombineWires) {
    SCOPED_TRACE(wire_name(wire));
    check_combine_wire(wire, row, type, random);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

void check_random_row(DataType type, std::size_t hidden, Values values, std::mt19937& random) {
  SCOPED_TRACE(std::string(data_type_name(type)) + ", hidden " + std::to_string(hidden) +
               ", values " + std::to_string(static_cast<int>(values)));
  GuardedRow row(hidden * element_bytes(type), random(), kInputGuard);
  fill(row, values, type, random);
  check_row(row, type, random);
}

TEST(WireFormats, EqualTheOracleForAnyHiddenTypeAndValues) {
  for_each_target([] {
    std::mt19937 random(kSeed);
    for (const DataType type : kTypes) {
      for (std::size_t hidden = 1; hidden <= 300; ++hidden) {
        for (std::size_t i = hidden % 3; i < std::size(kAllValues); i += 3)
          check_random_row(type, hidden, kAllValues[i], random);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(WireFormats, EqualTheOracleForLongRows) {
  for_each_target([] {
    std::mt19937 random(kSeed);
    for (const DataType type : kTypes) {
      for (const Values values : kAllValues) {
        for (const std::size_t hidden : {8192, 8193}) {  // maxima are found for 8192 at a time
          check_random_row(type, hidden, values, random);
          if (::testing::Test::HasFatalFailure()) return;
        }
        check_random_row(type, 7168 + random() % 2, values, random);
      }
    }
  });
}

// All bf16 values, each in a row of its own: its scale and its decoded value.
TEST(WireFormats, EqualTheOracleForRowsOfOneElement) {
  for_each_target([] {
    std::mt19937 random(kSeed);
    for (std::uint32_t bits = 0; bits < 0x10000; bits += 5) {
      GuardedRow row(sizeof(std::uint16_t), 0, kInputGuard);
      std::memcpy(row.data(), &bits, row.bytes());
      SCOPED_TRACE("bf16 " + std::to_string(bits));
      check_row(row, DataType::kBf16, random);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

// The e4m3 number of a code, from its definition.
float e4m3_value(int code) {
  const int exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                       : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

// The nearest code by search; ties go to the even code.
int nearest_e4m3(float magnitude) {
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double distance = std::fabs(static_cast<double>(e4m3_value(code)) - magnitude);
    const double least = std::fabs(static_cast<double>(e4m3_value(best)) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best;
}

// 448 is in every group: elements are multiplied with 1.
TEST(WireFormats, EveryBf16GoesToTheNearestE4m3AndBack) {
  constexpr std::size_t kGroup = 128;
  std::vector<std::uint16_t> row(kGroup), back(kGroup);
  std::vector<std::uint8_t> codes(kGroup);
  const std::uint16_t kMax = 0x43e0;
  for_each_target([&] {
    for (std::uint32_t first = 0; first < kMax; first += kGroup - 1) {
      for (std::size_t i = 0; i < kGroup; ++i)
        row[i] = static_cast<std::uint16_t>(std::min<std::uint32_t>(first + i, kMax) | i % 2 << 15);
      row.back() = kMax;
      float scale = 0;
      const WireFormat& format = wire_format(Wire::kFp8);
      format.encode({.row = row.data(),
                     .row_type = DataType::kBf16,
                     .hidden = kGroup,
                     .out = codes.data(),
                     .scales = &scale});
      format.decode({.encoded = codes.data(),
                     .scales = &scale,
                     .row_type = DataType::kBf16,
                     .hidden = kGroup,
                     .out = back.data()});
      ASSERT_EQ(scale, 1.0F);
      for (std::size_t i = 0; i < kGroup; ++i) {
        const float value = to_float(&row[i], DataType::kBf16);
        const int code = nearest_e4m3(std::fabs(value));
        ASSERT_EQ(codes[i], code | (std::signbit(value) ? 0x80 : 0)) << value;
        ASSERT_EQ(to_float(&back[i], DataType::kBf16), std::copysign(e4m3_value(code), value));
      }
    }
  });
}

// Rows at the very beginning and the very end of their pages: any access beside them is fatal.
void touch_fenced_rows(const WireFormat& format, DataType type, std::int64_t hidden) {
  const std::size_t row_bytes = static_cast<std::size_t>(hidden) * element_bytes(type);
  const std::size_t encoded_bytes = format.encoded_bytes(hidden, type);
  const std::size_t scale_bytes = static_cast<std::size_t>(format.num_scales(hidden)) * 4;
  FencedPages row(row_bytes), encoded(encoded_bytes), scales(scale_bytes), factors(row_bytes * 2);
  const auto run = [&](std::byte* at, std::byte* out, std::byte* scale, std::byte* factor) {
    const RowFactors row_factors{reinterpret_cast<const float*>(factor), true};
    format.encode({.row = at,
                   .row_type = type,
                   .hidden = hidden,
                   .factors = row_factors,
                   .out = out,
                   .scales = scale,
                   .next = at});
    format.decode({.encoded = out, .scales = scale, .row_type = type, .hidden = hidden, .out = at});
  };
  run(row.first(), encoded.first(), scales.first(), factors.first());
  run(row.last(row_bytes), encoded.last(encoded_bytes), scales.last(scale_bytes),
      factors.last(static_cast<std::size_t>(hidden) * sizeof(float)));
}

TEST(WireFormats, TouchNoPageOutsideTheirRows) {
  for_each_target([] {
    for (const DataType type : kTypes) {
      for (const std::int64_t hidden : {1, 2, 3, 5, 8, 31, 33, 127, 128, 130, 257, 1023}) {
        for (const Wire wire : kWires) touch_fenced_rows(wire_format(wire), type, hidden);
        for (const CombineWire wire : kCombineWires)
          touch_fenced_rows(wire_format(wire), type, hidden);
      }
    }
  });
}

TEST(WireFormats, NameTheirSizes) {
  const auto bytes = [](auto wire, std::int64_t hidden, DataType type) {
    return wire_format(wire).encoded_bytes(hidden, type);
  };
  EXPECT_EQ(bytes(Wire::kNone, 7, DataType::kFp32), 28U);
  EXPECT_EQ(bytes(Wire::kFp8, 130, DataType::kFp32), 130U);
  EXPECT_EQ(bytes(CombineWire::kNone, 7, DataType::kBf16), 14U);
  EXPECT_EQ(bytes(CombineWire::kInt8Block8, 33, DataType::kBf16), 64U + 5 * 2);
  EXPECT_EQ(bytes(CombineWire::kInt8Block128, 129, DataType::kFp32), 160U + 2 * 4);
  EXPECT_EQ(bytes(CombineWire::kLogfmt10, 129, DataType::kFp16), 2U * 4 + 129 * 2);
  EXPECT_EQ(wire_format(Wire::kNone).num_scales(129), 0);
  EXPECT_EQ(wire_format(Wire::kInt8).num_scales(129), 1);
  EXPECT_EQ(wire_format(Wire::kInt8Static).num_scales(129), 0);
  EXPECT_EQ(wire_format(Wire::kFp8).num_scales(128), 1);
  EXPECT_EQ(wire_format(Wire::kFp8Pow2).num_scales(129), 2);
  EXPECT_EQ(wire_format(Wire::kFp8Ue8m0).num_scales(512), 1);
  EXPECT_EQ(wire_format(Wire::kFp8Ue8m0).num_scales(513), 2);
}

TEST(WireFormats, HaveTheNamesAndTypesOfTheirWires) {
  for (const Wire wire : kWires) {
    const bool is_fp8 = wire >= Wire::kFp8;
    EXPECT_STREQ(wire_format(wire).name, wire_name(wire));
    EXPECT_EQ(wire_format(wire).element_type, is_fp8 ? DataType::kFp8E4m3 : DataType::kInt8);
  }
  for (const CombineWire wire : kCombineWires)
    EXPECT_STREQ(wire_format(wire).name, wire_name(wire));
  EXPECT_EQ(wire_format(Wire::kNone).encode, nullptr);
  EXPECT_EQ(wire_format(CombineWire::kNone).decode, nullptr);
}

}  // namespace
}  // namespace ferry::internal::testing
