// The fit behind `ferry doctor --calibrate`.
#include "calibrate.h"

#include <gmock/gmock.h>

#include <stdexcept>

namespace ferry::tools {
namespace {

constexpr std::array<double, 2> kCaches = {2, 40};  // MB

std::vector<CopySample> samples(const Machine::Copying& cost) {
  std::vector<CopySample> all;
  for (const int ranks : {2, 4, 8}) {
    for (const double rows : {100.0, 1000.0, 20000.0}) {
      const double bytes = rows * (ranks == 4 ? 2048 : 6144);
      all.push_back(
          {ranks, rows, bytes,
           ranks * cost.rank_us + rows * cost.row_ns / 1e3 + cost.bytes_us(bytes, kCaches)});
    }
  }
  return all;
}

constexpr Machine::Copying kCost = {.rank_us = 4, .row_ns = 26, .gb_s = {60, 43.5, 18}};

TEST(Calibrate, FindsTheConstantsThatMadeTheTimes) {
  const Machine::Copying found = fit_copying(samples(kCost), kCaches);
  EXPECT_NEAR(found.rank_us, 4, 1e-6);
  EXPECT_NEAR(found.row_ns, 26, 1e-6);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(found.gb_s[i], kCost.gb_s[i], 1e-6);
}

TEST(Calibrate, BytesBeyondACacheTakeTheTimeOfTheNext) {
  EXPECT_DOUBLE_EQ(kCost.bytes_us(1e6, kCaches), 1e3 / 60);
  EXPECT_DOUBLE_EQ(kCost.bytes_us(100e6, kCaches), 2e3 / 60 + 38e3 / 43.5 + 60e3 / 18);
}

TEST(Calibrate, NoTermIsNegative) {
  std::vector<CopySample> falling = samples(kCost);
  for (CopySample& sample : falling) sample.us -= 0.9 * 4 * sample.ranks + 0.02 * sample.rows;
  for (CopySample& sample : falling) sample.us = std::max(sample.us, 1.0);
  const Machine::Copying found = fit_copying(falling, kCaches);
  EXPECT_GT(found.rank_us, 0);
  EXPECT_GT(found.row_ns, 0);
  for (const double rate : found.gb_s) EXPECT_GT(rate, 0);
}

TEST(Calibrate, FewSamplesAreRefused) {
  EXPECT_THROW(fit_copying({{2, 1, 1, 1}}, kCaches), std::invalid_argument);
}

}  // namespace
}  // namespace ferry::tools
