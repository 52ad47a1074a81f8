// constant_summand and normalise_row on every SIMD target against the oracle's slow loops, bit for
// bit.
#include "kernels/row_sums.h"

#include <gtest/gtest.h>

#include <cmath>
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

constexpr DataType kTypes[] = {DataType::kBf16, DataType::kFp16, DataType::kFp32};

enum class Values { kNormal, kWide, kZeros, kSpecial };
constexpr Values kAllValues[] = {Values::kNormal, Values::kWide, Values::kZeros, Values::kSpecial};

float random_value(Values values, std::mt19937& random) {
  std::normal_distribution<float> normal;
  const float specials[] = {std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            3e38F,
                            -3e38F,
                            1e-40F,
                            -0.0F};
  switch (values) {
    case Values::kWide: return std::ldexp(normal(random), static_cast<int>(random() % 40) - 30);
    case Values::kZeros: return random() % 2 == 0 ? 0.0F : -0.0F;
    case Values::kSpecial:
      if (random() % 64 == 0) return specials[random() % std::size(specials)];
      [[fallthrough]];
    default: return normal(random);
  }
}

GuardedRow random_row(std::size_t hidden, DataType type, Values values, std::mt19937& random) {
  GuardedRow row(hidden * element_bytes(type), random(), kInputGuard);
  for (std::size_t i = 0; i < row.bytes(); i += element_bytes(type))
    from_float(random_value(values, random), row.data() + i, type);
  return row;
}

std::span<const std::byte> span_of(const GuardedRow& row) { return {row.data(), row.bytes()}; }

// Equal bits, or both NaN: the sum of several NaNs depends on the processor.
void expect_equal(const void* actual, const void* expected, std::size_t hidden, DataType type) {
  const std::size_t width = element_bytes(type);
  const auto* a = static_cast<const std::byte*>(actual);
  const auto* b = static_cast<const std::byte*>(expected);
  for (std::size_t h = 0; h < hidden; ++h, a += width, b += width) {
    if (std::isnan(to_float(a, type)) && std::isnan(to_float(b, type))) continue;
    ASSERT_EQ(std::memcmp(a, b, width), 0)
        << "channel " << h << ": " << to_float(a, type) << " is not " << to_float(b, type);
  }
}

void check_constant_term(std::size_t hidden, DataType type, Values values, std::mt19937& random) {
  const GuardedRow x = random_row(hidden, type, values, random);
  const GuardedRow alpha1 = random_row(hidden, type, Values::kNormal, random);
  const GuardedRow alpha2 = random_row(hidden, type, values, random);
  const GuardedRow v = random_row(hidden, type, values, random);
  std::vector<float> out(hidden + 1, 7.0F);
  constant_summand({.x = x.data(),
                    .alpha1 = alpha1.data(),
                    .alpha2 = alpha2.data(),
                    .v = v.data(),
                    .type = type,
                    .hidden = static_cast<std::int64_t>(hidden),
                    .out = out.data()});
  const std::vector<float> expected =
      reference_constant_term(span_of(x), span_of(alpha1), span_of(alpha2), span_of(v), type);
  expect_equal(out.data(), expected.data(), hidden, DataType::kFp32);
  EXPECT_EQ(out.back(), 7.0F);
}

void check_norm(std::size_t hidden, DataType type, Values values, std::mt19937& random) {
  std::vector<float> z(hidden);
  for (float& value : z) value = random_value(values, random);
  const GuardedRow gamma = random_row(hidden, type, values, random);
  GuardedRow out(gamma.bytes(), random(), kOutputGuard), y(gamma.bytes(), random(), kOutputGuard);
  float rstd = 0.0F;
  normalise_row({.z = z.data(),
                 .gamma = gamma.data(),
                 .epsilon = 1e-5F,
                 .type = type,
                 .hidden = static_cast<std::int64_t>(hidden),
                 .out = out.data(),
                 .y = y.data(),
                 .rstd = &rstd});
  const ReferenceNorm expected = reference_norm(z, span_of(gamma), 1e-5F, type);
  expect_equal(&rstd, &expected.rstd, 1, DataType::kFp32);
  expect_equal(out.data(), expected.out.data(), hidden, type);
  expect_equal(y.data(), expected.y.data(), hidden, type);
  EXPECT_TRUE(out.guards_intact() && y.guards_intact());
}

using Check = void (*)(std::size_t, DataType, Values, std::mt19937&);

void check_all_types(Check check, std::size_t hidden, Values values, std::mt19937& random) {
  for (const DataType type : kTypes) {
    SCOPED_TRACE(std::string(data_type_name(type)) + ", hidden " + std::to_string(hidden) +
                 ", values " + std::to_string(static_cast<int>(values)));
    check(hidden, type, values, random);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

void check_every_hidden(Check check) {
  for_each_target([check] {
    std::mt19937 random(kSeed);
    for (std::size_t hidden = 1; hidden <= 300; ++hidden)
      check_all_types(check, hidden, kAllValues[hidden % std::size(kAllValues)], random);
    for (const Values values : kAllValues) {
      for (const std::size_t hidden : {16, 256, 512, 7168, 7169})
        check_all_types(check, hidden, values, random);
    }
  });
}

TEST(RowSums, ConstantTermEqualsTheOracle) { check_every_hidden(check_constant_term); }

TEST(RowSums, NormEqualsTheOracle) { check_every_hidden(check_norm); }

// Channel 16 is added to the partial sum of channel 0, channel 8 only at the end: rounding at 2^24
// drops the 1 of its own partial sum and no other.
TEST(RowSums, DotsAreTakenInSixteenPartialSums) {
  std::vector<float> x(32, 0.0F), ones(32, 1.0F), zeros(32, 0.0F), out(32);
  x[0] = 0x1p24F, x[16] = 1.0F, x[8] = -0x1p24F, x[1] = 1.0F;
  for_each_target([&] {
    constant_summand({.x = x.data(),
                      .alpha1 = ones.data(),
                      .alpha2 = zeros.data(),
                      .v = zeros.data(),
                      .type = DataType::kFp32,
                      .hidden = 32,
                      .out = out.data()});
    const auto e2 = static_cast<float>(std::exp(-1.0));  // the dots are 1 and 0
    EXPECT_EQ(out[1], 1.0F / (1.0F + e2));
  });
}

TEST(RowSums, TouchNoPageOutsideTheirRows) {
  for_each_target([] {
    for (const DataType type : kTypes) {
      for (const std::size_t hidden : {1, 3, 16, 17, 255, 256, 257, 1000}) {
        const std::size_t bytes = hidden * element_bytes(type), floats = hidden * sizeof(float);
        FencedPages a(bytes), b(bytes), c(bytes), d(bytes), f(floats);
        float rstd = 0.0F;
        const auto run = [&](void* pa, void* pb, void* pc, void* pd, std::byte* pf) {
          auto* values = reinterpret_cast<float*>(pf);
          constant_summand({pa, pb, pc, pd, type, static_cast<std::int64_t>(hidden), values});
          normalise_row(
              {values, pa, 1e-5F, type, static_cast<std::int64_t>(hidden), pb, pc, &rstd});
        };
        run(a.first(), b.first(), c.first(), d.first(), f.first());
        run(a.last(bytes), b.last(bytes), c.last(bytes), d.last(bytes), f.last(floats));
      }
    }
  });
}

}  // namespace
}  // namespace ferry::internal::testing
