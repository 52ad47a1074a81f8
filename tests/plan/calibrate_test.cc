// The fit behind `ferry doctor --calibrate`.
#include "calibrate.h"

#include <gmock/gmock.h>

#include <stdexcept>

namespace ferry::tools {
namespace {

std::vector<CopySample> samples(double rank_us, double row_ns, double gb_s, double beyond_gb_s) {
  std::vector<CopySample> all;
  for (const int ranks : {2, 4, 8}) {
    for (const double rows : {100.0, 1000.0, 20000.0}) {
      const double bytes = rows * (ranks == 4 ? 2048 : 6144);
      const double rate = bytes > 40e6 ? beyond_gb_s : gb_s;
      all.push_back(
          {ranks, rows, bytes, ranks * rank_us + rows * row_ns / 1e3 + bytes / rate / 1e3});
    }
  }
  return all;
}

TEST(Calibrate, FindsTheConstantsThatMadeTheTimes) {
  const Machine::Copying found = fit_copying(samples(4, 26, 43.5, 38.8), 40);
  EXPECT_NEAR(found.rank_us, 4, 1e-6);
  EXPECT_NEAR(found.row_ns, 26, 1e-6);
  EXPECT_NEAR(found.gb_s, 43.5, 1e-6);
  EXPECT_NEAR(found.beyond_gb_s, 38.8, 1e-6);
}

TEST(Calibrate, NoTermIsNegative) {
  std::vector<CopySample> falling = samples(4, 26, 43.5, 38.8);
  for (CopySample& sample : falling) sample.us -= 0.9 * 4 * sample.ranks + 0.02 * sample.rows;
  for (CopySample& sample : falling) sample.us = std::max(sample.us, 1.0);
  const Machine::Copying found = fit_copying(falling, 40);
  EXPECT_GT(found.rank_us, 0);
  EXPECT_GT(found.row_ns, 0);
  EXPECT_GT(found.gb_s, 0);
  EXPECT_GT(found.beyond_gb_s, 0);
}

TEST(Calibrate, FewSamplesAreRefused) {
  EXPECT_THROW(fit_copying({{2, 1, 1, 1}}, 40), std::invalid_argument);
}

}  // namespace
}  // namespace ferry::tools
