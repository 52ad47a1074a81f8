// The fits behind `ferry doctor --calibrate`.
#include "calibrate.h"

#include "calibrate_links.h"

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

// What plan() says of a machine, as if benches had measured it.
std::vector<LinkSample> planned(const Machine& machine) {
  std::vector<LinkSample> samples;
  for (const int tokens : {24, 96}) {
    LinkSample sample;
    sample.workload.exchange = {
        .max_tokens = tokens, .hidden = 6144, .num_experts = 96, .top_k = 8};
    for (const Prediction& one : plan(machine, sample.workload).predictions)
      sample.times.push_back({one.strategy, one.dispatch_us, one.combine_us, one.pair_us()});
    samples.push_back(std::move(sample));
  }
  return samples;
}

// A rate that limits nothing cannot be found, so times are compared.
void expect_found(const char* real, const char* first) {
  const std::vector<LinkSample> was = planned(Machine::parse(real));
  const std::vector<LinkSample> is = planned(fit_links(Machine::parse(first), was));
  for (std::size_t i = 0; i < was.size(); ++i) {
    for (std::size_t j = 0; j < was[i].times.size(); ++j)
      EXPECT_NEAR(is[i].times[j].pair_us / was[i].times[j].pair_us, 1, 0.02) << real;
  }
}

TEST(CalibrateLinks, FindsTheRatesThatMadeTheTimes) {
  expect_found("rack:2@0.11GB/s@700us,host:2@0.4GB/s,rank:2",
               "rack:2@0.25GB/s,host:2@1GB/s,rank:2");
  expect_found("host:2@1.5GB/s@30us,rank:4", "host:2,rank:4");
}

TEST(CalibrateLinks, FindsProcessorsThatLimit) {
  expect_found("host:2,rank:4\nhost network 3GB/s together\n", "host:2,rank:4\nhost together\n");
}

TEST(CalibrateLinks, AnAlgorithmThatIsNoneIsRefused) {
  std::vector<LinkSample> samples = planned(Machine::parse("host:2@1GB/s,rank:2"));
  samples[0].times[0].algorithm = "ring";
  EXPECT_THROW(fit_links(Machine::parse("host:2@1GB/s,rank:2"), samples), std::invalid_argument);
}

}  // namespace
}  // namespace ferry::tools
