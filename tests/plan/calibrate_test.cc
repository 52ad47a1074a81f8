// The fits behind `ferry doctor --calibrate`.
#include "tools/calibrate/calibrate.h"

#include "tools/calibrate/links.h"

#include <gmock/gmock.h>

#include <array>
#include <fstream>
#include <stdexcept>

namespace ferry::tools {
namespace {

TEST(Calibrate, AWrongMachineIsRefusedByItsFileBeforeAnyBench) {
  const std::string file = testing::TempDir() + "/wrong.json";
  std::ofstream(file) << R"({"tree": "rank:8", "lnks": []})";
  const LinkCalibration options{
      .file = file + ".out", .hosts = "none:1", .topology = "host:2,rank:1", .machine = file};
  EXPECT_THAT([&] { calibrate_links(options); },
              testing::ThrowsMessage<std::invalid_argument>(
                  testing::HasSubstr(file + ", line 1: unknown key 'lnks'")));
}

constexpr int kProcessors = 2;
constexpr Machine::Caches kCaches = {.mb = {2, 40}, .rank_mb = 0.25};

constexpr Machine::Copying kOut = {.rank_us = 4, .waiting_us = 9, .token_ns = 26, .gb_s = {60, 18}};
constexpr Machine::Copying kHome = {
    .rank_us = 2, .waiting_us = 3, .token_ns = 35, .gb_s = {90, 25}};

double us_of(const Machine::Copying& cost, const CopySample& sample,
             const Machine::Caches& caches) {
  return cost.ranks_us(sample.ranks, kProcessors) + sample.tokens * cost.token_ns / 1e3 +
         cost.bytes_us(sample.bytes, caches.part_beyond(sample.bytes, sample.ranks));
}

CopySamples samples() {
  CopySamples all{.processors = kProcessors, .shapes = {}};
  for (const int ranks : {2, 4, 8}) {
    for (const double tokens : {100.0, 1000.0, 3000.0, 20000.0}) {
      CopySample sample = {ranks, tokens, tokens * (ranks == 4 ? 2048 : 6144)};
      sample.dispatch_us = us_of(kOut, sample, kCaches);
      sample.combine_us = us_of(kHome, sample, kCaches);
      all.shapes.push_back(sample);
    }
  }
  return all;
}

void expect_near(const Machine::Copying& found, const Machine::Copying& cost, double part) {
  EXPECT_NEAR(found.rank_us, cost.rank_us, part * cost.rank_us);
  EXPECT_NEAR(found.waiting_us, cost.waiting_us, part * cost.waiting_us);
  EXPECT_NEAR(found.token_ns, cost.token_ns, part * cost.token_ns);
  for (int i = 0; i < 2; ++i) EXPECT_NEAR(found.gb_s[i], cost.gb_s[i], part * cost.gb_s[i]);
}

TEST(Calibrate, FindsTheConstantsThatMadeTheTimes) {
  const Machine::Host found = fit_host(samples());
  for (int i = 0; i < 2; ++i)
    EXPECT_NEAR(found.caches.mb[i], kCaches.mb[i], 0.2 * kCaches.mb[i]) << i;
  EXPECT_NEAR(found.caches.rank_mb, kCaches.rank_mb, 0.1);
  expect_near(found.dispatch, kOut, 0.05);
  expect_near(found.combine, kHome, 0.05);
}

TEST(Calibrate, ADisturbedRunMeansLittle) {
  CopySamples disturbed = samples();
  disturbed.shapes[5].dispatch_us *= 2;
  const Machine::Host found = fit_host(disturbed);
  for (const CopySample& sample : samples().shapes) {
    const double predicted_us =
        us_of(found.dispatch, sample, found.caches) + us_of(found.combine, sample, found.caches);
    EXPECT_NEAR(predicted_us / sample.pair_us(), 1, 0.06);
  }
}

TEST(Calibrate, BetweenTheSizesThePartInACacheFalls) {
  EXPECT_DOUBLE_EQ(kCaches.part_beyond(1e6, 2), 0);
  EXPECT_DOUBLE_EQ(kCaches.part_beyond(20.5e6, 2), 0.5);
  EXPECT_DOUBLE_EQ(kCaches.part_beyond(19e6, 8), 0.5);  // the memory of ranks counts, too
  EXPECT_DOUBLE_EQ(kCaches.part_beyond(100e6, 2), 1);
  EXPECT_DOUBLE_EQ(kOut.bytes_us(1e6, 0), 1e3 / 60);
  EXPECT_DOUBLE_EQ(kOut.bytes_us(21e6, 0.5), 10.5e3 / 60 + 10.5e3 / 18);
  EXPECT_DOUBLE_EQ(kOut.bytes_us(100e6, 1), 100e3 / 18);
}

TEST(Calibrate, NoTermIsNegative) {
  CopySamples falling = samples();
  for (CopySample& sample : falling.shapes)
    sample.dispatch_us =
        std::max(sample.dispatch_us - 0.9 * 4 * sample.ranks - 0.02 * sample.tokens, 1.0);
  const Machine::Copying found = fit_host(falling).dispatch;
  EXPECT_GT(found.rank_us, 0);
  EXPECT_GT(found.token_ns, 0);
  for (const double rate : found.gb_s) EXPECT_GT(rate, 0);
}

TEST(Calibrate, FewSamplesAreRefused) {
  EXPECT_THROW(fit_host({.shapes = {{2, 1, 1, 1, 1}}}), std::invalid_argument);
}

// Adds `count` runs of each of two shapes. The first run is the fastest.
void add_runs(CopyRuns& runs, double flag_ns, int count) {
  const std::array flags_ns = {flag_ns, 1.5 * flag_ns};
  for (int i = 0; i < count; ++i) {
    for (const std::size_t shape : {0U, 1U}) {
      EXPECT_EQ(runs.rarest_shape(flag_ns), shape);
      runs.add(shape, flags_ns, {.ranks = 2, .dispatch_us = flag_ns + i, .combine_us = 1});
    }
  }
}

TEST(CopyRuns, EachPlaceHasItsOwn) {
  CopyRuns runs(2, 6);
  add_runs(runs, 140, 3);
  runs.add(0, std::array{30.0, 130.0}, {});
  add_runs(runs, 30, 5);
  EXPECT_FALSE(runs.enough());
  add_runs(runs, 31, 1);
  EXPECT_TRUE(runs.enough());
  const Calibration found = runs.best();
  EXPECT_EQ(found.runs_between, 1);
  ASSERT_EQ(found.places.size(), 2U);
  EXPECT_EQ(found.places[0].flag_ns, 30);
  EXPECT_EQ(found.places[1].flag_ns, 140);
  for (const CopySamples& place : found.places) {
    ASSERT_EQ(place.shapes.size(), 2U);
    for (const CopySample& sample : place.shapes) EXPECT_EQ(sample.dispatch_us, place.flag_ns);
  }
}

TEST(CopyRuns, APlaceOfTooFewRunsIsNone) {
  CopyRuns runs(2, 6);
  add_runs(runs, 140, 2);
  add_runs(runs, 30, 2);
  EXPECT_THROW(runs.best(), std::runtime_error);
  add_runs(runs, 30, 1);
  EXPECT_EQ(runs.best().places.size(), 1U);
}

TEST(CopyRuns, HalfOfTheRoundsMakeAPlace) {
  CopyRuns runs(2, 5);
  add_runs(runs, 30, 2);
  EXPECT_THROW(runs.best(), std::runtime_error);
  add_runs(runs, 30, 1);
  EXPECT_EQ(runs.best().places.size(), 1U);
  add_runs(runs, 30, 1);
  EXPECT_FALSE(runs.enough());
  add_runs(runs, 30, 1);
  EXPECT_TRUE(runs.enough());
}

TEST(CopyRuns, OnOneCoreThereIsOnePlace) {
  CopyRuns runs(1, 6);
  for (int i = 0; i < 6; ++i)
    runs.add(runs.rarest_shape(0), {}, {.ranks = 2, .dispatch_us = 9.0 - i});
  EXPECT_TRUE(runs.enough());
  EXPECT_EQ(runs.best().places.at(0).shapes.at(0).dispatch_us, 4);
}

// The predictions of plan() for a machine, as samples of a benchmark.
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

// A rate that limits nothing cannot be fitted, so times are compared.
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
