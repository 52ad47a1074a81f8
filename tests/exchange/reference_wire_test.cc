// The oracle's wire formats, constant terms and norm against values worked out by hand from
// docs/numerics.md, so that the engine and the oracle cannot be wrong together.
#include "oracle/wire.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"

namespace ferry::internal {
namespace {

using Floats = std::vector<float>;
using Numbers = std::vector<int>;
using Bytes = std::vector<std::byte>;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr DataType kTypes[] = {DataType::kBf16, DataType::kFp16, DataType::kFp32};

Bytes row_of(const Floats& values, DataType type = DataType::kFp32) {
  Bytes row(values.size() * element_bytes(type));
  for (std::size_t h = 0; h < values.size(); ++h)
    from_float(values[h], &row[h * element_bytes(type)], type);
  return row;
}

Floats floats_of(const Bytes& row, DataType type = DataType::kFp32) {
  Floats values;
  for (std::size_t at = 0; at < row.size(); at += element_bytes(type))
    values.push_back(to_float(&row[at], type));
  return values;
}

Numbers int8s_of(const Bytes& bytes) {
  Numbers numbers;
  for (const std::byte byte : bytes) numbers.push_back(static_cast<std::int8_t>(byte));
  return numbers;
}

Numbers codes_of(const Bytes& bytes) {
  Numbers numbers;
  for (const std::byte byte : bytes) numbers.push_back(std::to_integer<int>(byte));
  return numbers;
}

std::vector<std::uint32_t> words_of(const Bytes& bytes) {
  std::vector<std::uint32_t> words(bytes.size() / 4);
  std::memcpy(words.data(), bytes.data(), words.size() * 4);
  return words;
}

ReferenceEncoded encode(Wire wire, const Floats& values, const Floats& factors = {}) {
  return reference_encode(wire, row_of(values), DataType::kFp32, factors);
}

Bytes part_of(const Bytes& bytes, std::size_t first, std::size_t size) {
  return {bytes.begin() + static_cast<std::ptrdiff_t>(first),
          bytes.begin() + static_cast<std::ptrdiff_t>(first + size)};
}

// ---- dispatch: int8

TEST(ReferenceWire, Int8RoundsTiesToEvenAndTheLargestTo127) {
  for (const DataType type : kTypes) {
    const Floats row = {127, -127, 0.5, 1.5, 2.5, -0.5, -1.5, 63.75, -0.0F};
    const ReferenceEncoded encoded = reference_encode(Wire::kInt8, row_of(row, type), type, {});
    EXPECT_EQ(int8s_of(encoded.row), (Numbers{127, -127, 0, 2, 2, 0, -2, 64, 0}));
    EXPECT_EQ(floats_of(encoded.scales), Floats{1});
    EXPECT_EQ(reference_decode(Wire::kInt8, encoded), (Floats{127, -127, 0, 2, 2, 0, -2, 64, 0}));
  }
}

TEST(ReferenceWire, Int8ScaleIsASecondDivision) {
  // 11 / 127 would round to 0x3db162c6.
  EXPECT_EQ(words_of(encode(Wire::kInt8, {11}).scales)[0], 0x3db162c5);
  EXPECT_EQ(words_of(encode(Wire::kInt8, {-21}).scales)[0], 0x3e2952a6);
}

TEST(ReferenceWire, Int8FactorsComeBeforeTheMaximum) {
  const ReferenceEncoded one = encode(Wire::kInt8, {1, 2}, {63.5});
  EXPECT_EQ(int8s_of(one.row), (Numbers{64, 127}));
  const ReferenceEncoded each = encode(Wire::kInt8, {1, 2}, {-127, 3});
  EXPECT_EQ(int8s_of(each.row), (Numbers{-127, 6}));
  EXPECT_EQ(floats_of(each.scales), Floats{1});
}

TEST(ReferenceWire, Int8RowsOfZerosAndTinyRowsAreZeros) {
  for (const Floats& row : {Floats{0, -0.0F}, Floats{3.73e-37F, 1e-40F}, Floats{1e-45F, 0}}) {
    const ReferenceEncoded encoded = encode(Wire::kInt8, row);
    EXPECT_EQ(int8s_of(encoded.row), (Numbers{0, 0}));
    EXPECT_EQ(words_of(encoded.scales)[0], 0u);
  }
  const ReferenceEncoded smallest = encode(Wire::kInt8, {3.74e-37F, -1.87e-37F});
  EXPECT_EQ(int8s_of(smallest.row), (Numbers{127, -64}));
  EXPECT_GT(floats_of(smallest.scales)[0], 0.0F);  // subnormal, not flushed
}

TEST(ReferenceWire, Int8NanOrInfinityZeroesTheRow) {
  for (const float bad : {kNan, -kNan, kInf, -kInf, 1e38F}) {
    const ReferenceEncoded encoded = encode(Wire::kInt8, {1, bad, 3}, {100});
    EXPECT_EQ(int8s_of(encoded.row), (Numbers{0, 0, 0}));
    EXPECT_EQ(words_of(encoded.scales)[0], 0x7fc00000);
    for (const float value : reference_decode(Wire::kInt8, encoded)) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(ReferenceWire, StaticInt8ClampsAndHasNoScale) {
  const Floats row = {0.5, 1.5, -2.5, 127.4F, 127.5, 1e30F, -128.5, -129, kInf, -kInf, kNan};
  const ReferenceEncoded encoded = encode(Wire::kInt8Static, row);
  const Numbers expected = {0, 2, -2, 127, 127, 127, -128, -128, 127, -128, 0};
  EXPECT_EQ(int8s_of(encoded.row), expected);
  EXPECT_TRUE(encoded.scales.empty());
  EXPECT_EQ(reference_decode(Wire::kInt8Static, encoded), Floats(expected.begin(), expected.end()));
  EXPECT_EQ(int8s_of(encode(Wire::kInt8Static, {3, 5}, {0.5}).row), (Numbers{2, 2}));
  EXPECT_EQ(int8s_of(encode(Wire::kInt8Static, {3, 5}, {2, -1}).row), (Numbers{6, -5}));
}

// ---- dispatch: fp8

TEST(ReferenceWire, Fp8RoundsToNearestEvenWithSubnormalsAndSignedZero) {
  // The largest is 448, so that the scale is 1.
  const Floats row = {448,
                      1,
                      -1,
                      0x1p-6F,
                      0x1p-9F,
                      0x1.8p-9F,
                      0x1p-10F,
                      0x1.002p-10F,
                      17,
                      19,
                      -0.0F,
                      0x1.ep-7F,
                      463.9F / 464.0F * 448.0F,
                      240};
  const Numbers codes = {0x7e, 0x38, 0xb8, 0x08, 0x01, 0x02, 0x00,
                         0x01, 0x58, 0x5a, 0x80, 0x08, 0x7e, 0x77};
  for (const Wire wire : {Wire::kFp8, Wire::kFp8Pow2, Wire::kFp8Ue8m0})
    EXPECT_EQ(codes_of(encode(wire, row).row), codes);
  EXPECT_EQ(floats_of(encode(Wire::kFp8, row).scales), Floats{1});
  EXPECT_EQ(floats_of(encode(Wire::kFp8Pow2, row).scales), Floats{1});
  EXPECT_EQ(words_of(encode(Wire::kFp8Ue8m0, row).scales)[0], 127u);
}

TEST(ReferenceWire, EveryFp8NumberIsItsOwnCode) {
  ReferenceEncoded all{.row = {}, .scales = {}};
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN, never written
    all.row = {static_cast<std::byte>(code), std::byte{0x7e}};
    all.scales = row_of({1});
    const Floats values = reference_decode(Wire::kFp8, all);
    EXPECT_EQ(std::signbit(values[0]), code >= 0x80);
    EXPECT_EQ(codes_of(encode(Wire::kFp8, values).row), (Numbers{code, 0x7e}));
  }
  all.row = {std::byte{0x01}, std::byte{0x0f}, std::byte{0x38}, std::byte{0xfe}};
  EXPECT_EQ(reference_decode(Wire::kFp8, all), (Floats{0x1p-9F, 0x1.ep-6F, 1, -448}));
}

TEST(ReferenceWire, Fp8ScaleIsOfEach128Channels) {
  Floats row(130, 2.0F);
  row[0] = -896;
  row[129] = 448 * 3;
  const ReferenceEncoded encoded = encode(Wire::kFp8, row);
  EXPECT_EQ(floats_of(encoded.scales), (Floats{2, 3}));
  EXPECT_EQ(codes_of(encoded.row)[0], 0xfe);
  EXPECT_EQ(codes_of(encoded.row)[1], 0x38);
  EXPECT_EQ(codes_of(encoded.row)[128], 0x33);  // 2 / 3: 0.6875 = 11/8 * 2^-1
  EXPECT_EQ(floats_of(encode(Wire::kFp8Pow2, row).scales), (Floats{2, 4}));
  EXPECT_EQ(reference_decode(Wire::kFp8, encoded)[0], -896);
  EXPECT_EQ(reference_decode(Wire::kFp8, encoded)[129], 1344);
}

TEST(ReferenceWire, Fp8ScalesArePowersOfTwoRoundedUp) {
  const Floats largest = {448, 449, 447, 896, 1e-4F, 0, -0.0F, 2.9e38F};
  const Floats scales = {1, 2, 1, 2, 0x1p-22F, 0x1p-22F, 0x1p-22F, 0x1p119F};
  for (std::size_t i = 0; i < largest.size(); ++i) {
    EXPECT_EQ(floats_of(encode(Wire::kFp8Pow2, {largest[i]}).scales), Floats{scales[i]});
    const std::uint32_t exponent = std::ilogb(scales[i]) + 127;
    EXPECT_EQ(words_of(encode(Wire::kFp8Ue8m0, {largest[i]}).scales)[0], exponent);
  }
  EXPECT_EQ(codes_of(encode(Wire::kFp8Pow2, {449, 1}).row), (Numbers{0x76, 0x30}));
}

TEST(ReferenceWire, Fp8GroupsOfZerosKeepTheClampedScale) {
  const ReferenceEncoded encoded = encode(Wire::kFp8, {0, -0.0F, 1e-20F, 1e-45F});
  EXPECT_EQ(codes_of(encoded.row), (Numbers{0, 0x80, 0, 0}));
  EXPECT_EQ(floats_of(encoded.scales), Floats{0x1.df595ap-23F});  // 1e-4f / 448
}

TEST(ReferenceWire, Fp8NanOrInfinityZeroesItsGroupOnly) {
  for (const float bad : {kNan, -kNan, kInf, -kInf}) {
    Floats row(300, -448.0F);
    row[200] = bad;
    for (const Wire wire : {Wire::kFp8, Wire::kFp8Pow2}) {
      const ReferenceEncoded encoded = encode(wire, row);
      EXPECT_EQ(codes_of(encoded.row)[127], 0xfe);
      for (int h = 128; h < 256; ++h) EXPECT_EQ(codes_of(encoded.row)[h], 0);
      EXPECT_EQ(codes_of(encoded.row)[256], 0xfe);
      EXPECT_EQ(words_of(encoded.scales),
                (std::vector<std::uint32_t>{0x3f800000, 0x7fc00000, 0x3f800000}));
      EXPECT_TRUE(std::isnan(reference_decode(wire, encoded)[130]));
    }
    EXPECT_EQ(words_of(encode(Wire::kFp8Ue8m0, row).scales)[0], 0x7fff7fu);
    EXPECT_TRUE(std::isnan(reference_decode(Wire::kFp8Ue8m0, encode(Wire::kFp8Ue8m0, row))[130]));
  }
}

TEST(ReferenceWire, Ue8m0PacksFourToAnInt32) {
  Floats row(4 * 128 + 1, 448.0F);
  row[128] = 897;
  row[512] = -448.0F * 8;
  const ReferenceEncoded encoded = encode(Wire::kFp8Ue8m0, row);
  EXPECT_EQ(words_of(encoded.scales), (std::vector<std::uint32_t>{0x7f7f817f, 0x82}));
  EXPECT_EQ(reference_decode(Wire::kFp8Ue8m0, encoded)[512], -3584);
  EXPECT_EQ(encode(Wire::kFp8Ue8m0, Floats(4 * 128, 1.0F)).scales.size(), 4u);
}

// ---- combine: int8

TEST(ReferenceWire, Int8BlocksKeepTheirScalesBehindThePaddedRow) {
  const Floats values = {127, 0.5, -1.5, 2.5, 0, 0, 0, 0, -254, 3};
  for (const DataType type : kTypes) {
    const Bytes row = row_of(values, type);
    const Bytes encoded = reference_encode(CombineWire::kInt8Block8, row, type);
    ASSERT_EQ(encoded.size(), 32 + 2 * element_bytes(type));
    Numbers expected = {127, 0, -2, 2, 0, 0, 0, 0, -127, 2};  // 3 / 2 is a tie
    expected.resize(32);
    EXPECT_EQ(int8s_of(part_of(encoded, 0, 32)), expected);
    EXPECT_EQ(floats_of(part_of(encoded, 32, 2 * element_bytes(type)), type), (Floats{1, 2}));
    EXPECT_EQ(floats_of(reference_travel(CombineWire::kInt8Block8, row, type), type),
              (Floats{127, 0, -2, 2, 0, 0, 0, 0, -254, 4}));
    EXPECT_EQ(reference_encode(CombineWire::kInt8Block128, row, type).size(),
              32 + element_bytes(type));
  }
}

TEST(ReferenceWire, Int8BlocksDivideByTheUnroundedScale) {
  // s = 100 / 127 = 0.78740156; in bf16 0.7890625. 40.5 / s is 51.4, 40.5 / 0.7890625 51.3;
  // 50.5: 64.135 and 64.0; 59.5: 75.565 (76) and 75.41 (75).
  const Bytes row = row_of({100, 59.5}, DataType::kBf16);
  const Bytes encoded = reference_encode(CombineWire::kInt8Block8, row, DataType::kBf16);
  EXPECT_EQ(int8s_of(part_of(encoded, 0, 2)), (Numbers{127, 76}));
  EXPECT_EQ(floats_of(part_of(encoded, 32, 2), DataType::kBf16), Floats{0.7890625F});
  // 127 * 0.7890625 = 100.2109375 and 76 * 0.7890625 = 59.96875, to 8 bits.
  EXPECT_EQ(
      floats_of(reference_travel(CombineWire::kInt8Block8, row, DataType::kBf16), DataType::kBf16),
      (Floats{100, 60}));
}

TEST(ReferenceWire, Int8BlocksMultiplyByTheInverseOf127) {
  // 9 / 127 would round to 0x3d912245.
  const Bytes encoded = reference_encode(CombineWire::kInt8Block8, row_of({9}), DataType::kFp32);
  EXPECT_EQ(words_of(part_of(encoded, 32, 4))[0], 0x3d912244u);
}

TEST(ReferenceWire, Int8BlocksOfZerosAndTooSmallOnesAreZeros) {
  const Bytes row = row_of({0, -0.0F, 0, 0, 0, 0, 0, 0, 0x1p-149F, -0x1p-149F});
  const Bytes travelled = reference_travel(CombineWire::kInt8Block8, row, DataType::kFp32);
  for (const std::uint32_t bits : words_of(travelled)) EXPECT_EQ(bits, 0u);
  // s is 63 / 127 of the smallest fp16 and is stored as 0: -127 * 0.
  const Bytes small = row_of({63 * -0x1p-24F}, DataType::kFp16);
  const Bytes none = reference_travel(CombineWire::kInt8Block8, small, DataType::kFp16);
  EXPECT_EQ(codes_of(none), (Numbers{0, 0x80}));
}

TEST(ReferenceWire, Int8BlocksClampWhereTheScaleIsSubnormal) {
  // s = 64 / 127 * 2^-149 rounds to 2^-149, 190 / 127 to the same: 190 is clamped.
  const Bytes row =
      row_of({64 * 0x1p-149F, 0, 0, 0, 0, 0, 0, 0, 190 * 0x1p-149F, -190 * 0x1p-149F});
  const Bytes encoded = reference_encode(CombineWire::kInt8Block8, row, DataType::kFp32);
  EXPECT_EQ(int8s_of(part_of(encoded, 0, 10)), (Numbers{64, 0, 0, 0, 0, 0, 0, 0, 127, -127}));
}

TEST(ReferenceWire, Int8BlocksWithNanOrInfinityDecodeToNan) {
  const std::uint32_t nans[] = {0x7fc0, 0x7e00, 0x7fc00000};
  for (const float bad : {kNan, kInf, -kInf}) {
    for (std::size_t t = 0; t < std::size(kTypes); ++t) {
      Floats values(9, 127.0F);
      values[3] = bad;
      const Bytes row = row_of(values, kTypes[t]);
      const Bytes encoded = reference_encode(CombineWire::kInt8Block8, row, kTypes[t]);
      EXPECT_EQ(int8s_of(part_of(encoded, 0, 9)), (Numbers{0, 0, 0, 0, 0, 0, 0, 0, 127}));
      std::uint32_t scale = 0;
      std::memcpy(&scale, &encoded[32], element_bytes(kTypes[t]));
      EXPECT_EQ(scale, nans[t]);
      const Floats back =
          floats_of(reference_travel(CombineWire::kInt8Block8, row, kTypes[t]), kTypes[t]);
      for (int h = 0; h < 8; ++h) EXPECT_TRUE(std::isnan(back[h]));
      EXPECT_EQ(back[8], 127);
    }
  }
}

TEST(ReferenceWire, Int8BlocksOfTheLargestFp16BecomeInfinity) {
  // s = 515.78, stored as 516; 127 * 516 = 65532, beyond the largest fp16.
  const Bytes row = row_of({65504, 1000}, DataType::kFp16);
  EXPECT_EQ(
      floats_of(reference_travel(CombineWire::kInt8Block8, row, DataType::kFp16), DataType::kFp16),
      (Floats{kInf, 1032}));
}

// ---- combine: logfmt10

TEST(ReferenceWire, LogfmtBlockOfOneMagnitudeIsExact) {
  for (const DataType type : kTypes) {
    const Bytes row = row_of({1, -1, 0, -0.0F, 1}, type);
    const Bytes encoded = reference_encode(CombineWire::kLogfmt10, row, type);
    // Codes 1, 513, 0, 512, 1; the upper two bits of 0, 2, 4 in byte 0, of 1 and 3 in byte 1.
    EXPECT_EQ(codes_of(encoded), (Numbers{0x80, 0x3f, 0x80, 0x3f, 1, 1, 0, 0, 1, 0, 0x0a}));
    EXPECT_EQ(reference_travel(CombineWire::kLogfmt10, row, type), row);
  }
}

TEST(ReferenceWire, LogfmtCodesAreLinearInTheBits) {
  // From 1 to 2, 510 steps of 2^23 / 510 bits. 1.5: step 255, exact. 1.25: 127.5, to 128, which is
  // bit 2105376.25 of 2^23: 1.2509804.
  const Bytes row = row_of({1, 2, 1.5, -1.25});
  const Bytes encoded = reference_encode(CombineWire::kLogfmt10, row, DataType::kFp32);
  EXPECT_EQ(words_of(part_of(encoded, 0, 4))[0], 0x40003f80u);
  // Codes 1, 511, 256, 512 + 129.
  EXPECT_EQ(codes_of(part_of(encoded, 4, 5)), (Numbers{1, 255, 0, 129, 0b10'01'01'00}));
  const Bytes travelled = reference_travel(CombineWire::kLogfmt10, row, DataType::kFp32);
  EXPECT_EQ(words_of(travelled), (std::vector<std::uint32_t>{0x3f800000, 0x40000000, 0x3fc00000,
                                                             0xbf800000u + 2105376}));
  // bf16 has 128 numbers there: 1.2509804 is nearest to 1.25.
  const Bytes narrow = row_of({1, 2, 1.5, -1.25}, DataType::kBf16);
  EXPECT_EQ(reference_travel(CombineWire::kLogfmt10, narrow, DataType::kBf16), narrow);
}

TEST(ReferenceWire, LogfmtRangeIsThatOfTheUpperHalves) {
  // 1 + 2^-23 starts at 0x3f80 as 1 does, and ends at 0x3f81: 1 + 2^-7.
  const Bytes row = row_of({0x1.000002p0F});
  const Bytes encoded = reference_encode(CombineWire::kLogfmt10, row, DataType::kFp32);
  EXPECT_EQ(words_of(part_of(encoded, 0, 4))[0], 0x3f813f80u);
  EXPECT_EQ(codes_of(part_of(encoded, 4, 2)), (Numbers{1, 0}));
  EXPECT_EQ(floats_of(reference_travel(CombineWire::kLogfmt10, row, DataType::kFp32)), Floats{1});
}

TEST(ReferenceWire, LogfmtBlockOfZerosKeepsSigns) {
  const Bytes row = row_of({0, -0.0F, 0});
  EXPECT_EQ(codes_of(reference_encode(CombineWire::kLogfmt10, row, DataType::kFp32)),
            (Numbers{0, 0, 0, 0, 0, 0, 0, 0b10'00}));
  EXPECT_EQ(reference_travel(CombineWire::kLogfmt10, row, DataType::kFp32), row);
}

TEST(ReferenceWire, LogfmtBlockTooWideTravelsAs16Bits) {
  const Bytes fits = row_of({1, 65536});
  EXPECT_EQ(reference_encode(CombineWire::kLogfmt10, fits, DataType::kFp32).size(), 4u + 3);
  const Bytes wide = row_of({1, 65536 * 1.0078125F});
  EXPECT_EQ(codes_of(reference_encode(CombineWire::kLogfmt10, wide, DataType::kFp32)),
            (Numbers{0xff, 0xff, 0xff, 0xff, 0x80, 0x3f, 0x81, 0x47}));
  EXPECT_EQ(reference_travel(CombineWire::kLogfmt10, wide, DataType::kFp32), wide);
  const Bytes rounded = row_of({1e-30F, 0x1.01p0F});
  EXPECT_EQ(floats_of(reference_travel(CombineWire::kLogfmt10, rounded, DataType::kFp32))[1], 1);
  const Bytes half = row_of({0x1p-24F, 1023}, DataType::kFp16);
  EXPECT_EQ(codes_of(reference_encode(CombineWire::kLogfmt10, half, DataType::kFp16)),
            (Numbers{0xff, 0xff, 0xff, 0xff, 1, 0, 0xfe, 0x63}));
}

TEST(ReferenceWire, LogfmtNanAndInfinityTravelAs16Bits) {
  for (const DataType type : kTypes) {
    Floats values(129, 1.0F);
    values[5] = kInf;
    values[128] = kNan;
    const Bytes row = row_of(values, type);
    EXPECT_EQ(reference_encode(CombineWire::kLogfmt10, row, type).size(), 8u + 129 * 2);
    EXPECT_EQ(reference_travel(CombineWire::kLogfmt10, row, type), row);
  }
  // hi would be infinity: the largest float32 becomes infinity in bf16.
  const Bytes largest = row_of({std::numeric_limits<float>::max()});
  EXPECT_EQ(floats_of(reference_travel(CombineWire::kLogfmt10, largest, DataType::kFp32)),
            Floats{kInf});
}

TEST(ReferenceWire, LogfmtKeepsTheLargestFp16Finite) {
  // hi would be 65536. One value less and it is not: 65280 = 0x477f0000.
  const Bytes largest = row_of({65504, 1000}, DataType::kFp16);
  EXPECT_EQ(reference_encode(CombineWire::kLogfmt10, largest, DataType::kFp16).size(), 4u + 4);
  EXPECT_EQ(reference_travel(CombineWire::kLogfmt10, largest, DataType::kFp16), largest);
  const Bytes smaller = row_of({65280, 1000}, DataType::kFp16);
  EXPECT_EQ(reference_encode(CombineWire::kLogfmt10, smaller, DataType::kFp16).size(), 4u + 3);
}

TEST(ReferenceWire, LogfmtLeaves16BitNansAsTheyAre) {
  for (const int upper : {0x7f, 0xff}) {
    const Bytes nan = {std::byte{0x81}, static_cast<std::byte>(upper)};  // of both types
    for (const DataType type : {DataType::kBf16, DataType::kFp16})
      EXPECT_EQ(reference_travel(CombineWire::kLogfmt10, nan, type), nan);
  }
}

TEST(ReferenceWire, LogfmtBlocksFollowEachOtherWhateverTheirSize) {
  Floats values(300, 3.0F);
  values[130] = kInf;
  const Bytes row = row_of(values, DataType::kBf16);
  const Bytes encoded = reference_encode(CombineWire::kLogfmt10, row, DataType::kBf16);
  EXPECT_EQ(encoded.size(), 12u + (128 + 32) + 256 + (44 + 11));
  EXPECT_EQ(codes_of(part_of(encoded, 12 + 160 + 4, 2)), (Numbers{0x80, 0x7f}));
  EXPECT_EQ(reference_travel(CombineWire::kLogfmt10, row, DataType::kBf16), row);
}

// ---- special experts and the norm

TEST(ReferenceSpecial, EqualDotsShareTheTermEvenly) {
  for (const DataType type : kTypes) {
    const Bytes x = row_of({2, -6}, type), v = row_of({1, 3}, type);
    EXPECT_EQ(reference_constant_term(x, v, v, v, type), (Floats{1.5, -1.5}));
  }
}

TEST(ReferenceSpecial, TheLargerDotTakesAll) {
  const Bytes x = row_of({1000}), low = row_of({-1}), high = row_of({1}), v = row_of({7});
  EXPECT_EQ(reference_constant_term(x, high, low, v, DataType::kFp32), Floats{1000});
  EXPECT_EQ(reference_constant_term(x, low, high, v, DataType::kFp32), Floats{7});
}

TEST(ReferenceSpecial, DotsAreTakenIn16PartialSums) {
  // Sum 1 is 1 + 1; added to 2^24 one by one, or in 8 sums, the ones would vanish.
  Floats x(18, 0.0F);
  x[1] = x[17] = 1;
  x[9] = 0x1p24F;
  Floats alpha1(18, 1.0F), alpha2(18, 0.0F), v(18, 0.0F);
  alpha2[9] = 1;
  const Floats term = reference_constant_term(row_of(x), row_of(alpha1), row_of(alpha2), row_of(v),
                                              DataType::kFp32);
  const float e2 = static_cast<float>(std::exp(-2.0));
  EXPECT_EQ(term[1], 1.0F / (1.0F + e2));
}

TEST(ReferenceSpecial, NormOfFourTwos) {
  for (const DataType type : kTypes) {
    const Bytes gamma = row_of({1, -2, 0.5, 3}, type);
    const ReferenceNorm norm = reference_norm(Floats(4, 2.0F), gamma, 12.0F, type);
    EXPECT_EQ(norm.rstd, 0.25F);
    EXPECT_EQ(floats_of(norm.out, type), Floats(4, 2.0F));
    EXPECT_EQ(floats_of(norm.y, type), (Floats{0.5, -1, 0.25, 1.5}));
  }
}

TEST(ReferenceSpecial, NormRoundsAfterRstdAndAtTheEnd) {
  // z * rstd = 1 + 2^-8 is a tie of bf16 and becomes 1; out keeps 2.
  const Bytes gamma = row_of({1.5, 1}, DataType::kBf16);
  const ReferenceNorm norm =
      reference_norm(Floats{2.0078125F, 0}, gamma, 65023.0F / 32768, DataType::kBf16);
  EXPECT_EQ(norm.rstd, 0.5F);
  EXPECT_EQ(floats_of(norm.out, DataType::kBf16), (Floats{2, 0}));
  EXPECT_EQ(floats_of(norm.y, DataType::kBf16), (Floats{1.5, 0}));
}

TEST(ReferenceSpecial, NormSquaresBeforeItDivides) {
  // z * z overflows, though its part of the mean would not: 2^64 squared over 2^7.
  Floats z(128, 0.0F);
  z[0] = 0x1p64F;
  const ReferenceNorm norm = reference_norm(z, row_of(Floats(128, 1.0F)), 0.0F, DataType::kFp32);
  EXPECT_EQ(norm.rstd, 0.0F);
}

}  // namespace
}  // namespace ferry::internal
