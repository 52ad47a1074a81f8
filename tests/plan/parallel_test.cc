// The forward step with tensor and pipeline parallel ranks, and with pairs of micro-batches.
#include <gmock/gmock.h>

#include <limits>

#include "ferry/plan.h"
#include "ferry/status.h"

namespace ferry {
namespace {

constexpr double kRankBytes = 4096.0 * 14336;  // bytes of a rank's tokens

Workload in_parallel(const Workload::Parallel& parallel) {
  return {.exchange = {.max_tokens = 4096, .hidden = 7168, .num_experts = 256, .top_k = 8},
          .parallel = parallel};
}

Prediction best_of(const char* machine, const Workload::Parallel& parallel) {
  return plan(Machine::parse(machine), in_parallel(parallel), {.doubled = false}).predictions[0];
}

TEST(Parallel, TensorParallelNeighboursShareTokensAndGatherResults) {
  for (const char* machine : {"ubbv2:2@port10", "host:2@12.5GB/s,rank:4@20GB/s"}) {
    const Prediction one = best_of(machine, {}), four = best_of(machine, {.tp = 4});
    SCOPED_TRACE(machine);
    EXPECT_NEAR(four.loads[0].dispatch_bytes, one.loads[0].dispatch_bytes / 4, 1);
    EXPECT_EQ(one.step.gathered_bytes, 0);
    EXPECT_EQ(one.step.gather_us, 0);
    EXPECT_NEAR(four.step.gathered_bytes, 3 * kRankBytes / 4, 1e-3);
  }
  // Each of three peers sends a quarter over a link of its own, or all three over one link.
  const char* const mesh = "host:2,rank:4\nlink in mesh host 50GB/s\nlink out index host 10GB/s";
  EXPECT_NEAR(best_of(mesh, {.tp = 4}).step.gather_us, kRankBytes / 4 / 50e3, 1e-3);
  EXPECT_NEAR(best_of("host:2@12.5GB/s,rank:4@20GB/s", {.tp = 4}).step.gather_us,
              3 * kRankBytes / 4 / 20e3, 1e-3);
  // Two hosts of one rank each gather over the network.
  EXPECT_NEAR(best_of("host:2@12.5GB/s@5us,rank:1", {.tp = 2}).step.gather_us,
              5 + kRankBytes / 2 / 12.5e3, 1e-3);
}

TEST(Parallel, ResultsAreOfTheRowTypeWhateverNodesSum) {
  Workload shape = in_parallel({.tp = 4});
  for (const NodeSums sums : {NodeSums::kFp32, NodeSums::kExact}) {
    shape.exchange.node_sums = sums;
    const Plan plan = ferry::plan(Machine::parse("host:2,rank:4"), shape, {.doubled = false});
    EXPECT_NEAR(plan.predictions[0].step.gathered_bytes, 3 * kRankBytes / 4, 1e-3);
  }
}

TEST(Parallel, ManyRanksGatherAsFewDo) {
  const auto gather_us = [](const char* machine, int tp) {
    Workload shape = in_parallel({.tp = tp});
    shape.exchange.num_experts = 4096;
    const Plan plan = ferry::plan(Machine::parse(machine), shape, {.chunks = 1, .doubled = false});
    return plan.predictions[0].step.gather_us;
  };
  for (const int tp : {8, 32})  // neighbours on one host, and on four
    EXPECT_NEAR(gather_us("h800:512", tp), gather_us("h800:16", tp), 1e-3);
}

TEST(Parallel, AChainGathersByTheRanksOnTheWay) {
  const char* const chain = "rank:3\nlink next pairs 0-1,1-2 10GB/s";
  Workload shape = in_parallel({.tp = 3});
  shape.exchange.num_experts = 255;
  const Step step = plan(Machine::parse(chain), shape).predictions[0].step;
  // From rank 1 to 0: its own rows, and those of rank 2.
  EXPECT_NEAR(step.gather_us, 2 * 1366.0 * 14336 / 10e3, 1e-3);
}

TEST(Parallel, ARingGathersBothWays) {
  // Its own quarter, half of which goes on to the opposite rank.
  EXPECT_NEAR(best_of("rank:4\nlink r ring all 10GB/s", {.tp = 4}).step.gather_us,
              1.5 * kRankBytes / 4 / 10e3, 1e-3);
}

TEST(Parallel, PairsOfMicroBatchesHideTheShorterOfComputeAndExchange) {
  const char* const slowed = "host:2@12.5GB/s,rank:4\ncontention 1.3";
  const double pair_us = best_of(slowed, {}).pair_us();
  for (const double compute_us : {0.5 * pair_us, 3 * pair_us}) {
    const Step alone = best_of(slowed, {.compute_us = compute_us}).step;
    EXPECT_DOUBLE_EQ(alone.layer_us, compute_us + pair_us);
    EXPECT_DOUBLE_EQ(alone.paired_us, alone.layer_us);  // nothing to pair with
    const Step step = best_of(slowed, {.micro_batches = 2, .compute_us = compute_us}).step;
    EXPECT_DOUBLE_EQ(step.layer_us, compute_us + pair_us);
    EXPECT_DOUBLE_EQ(step.paired_us, std::max(compute_us, 1.3 * pair_us));
  }
}

TEST(Parallel, StagesWaitForTheFirstMicroBatch) {
  const Step step =
      best_of("host:2@12.5GB/s,rank:4", {.pp = 4, .layers = 58, .micro_batches = 8}).step;
  EXPECT_DOUBLE_EQ(step.step_us, 15 * (8 + 3) * step.layer_us);
  EXPECT_DOUBLE_EQ(step.paired_step_us, 15 * (8 + 3) * step.paired_us);
}

TEST(Parallel, LargeNumbersDoNotOverflow) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const Step deep = best_of("host:2@1GB/s,rank:4", {.pp = 2, .layers = kMost}).step;
  EXPECT_DOUBLE_EQ(deep.step_us, (kMost / 2 + 1.0) * 2 * deep.layer_us);
  const Step long_one = best_of("host:2@1GB/s,rank:4", {.pp = 2, .micro_batches = kMost}).step;
  EXPECT_DOUBLE_EQ(long_one.step_us, (kMost + 1.0) * long_one.layer_us);
}

TEST(Parallel, WhatDoesNotFitIsRefused) {
  const auto refusal = [](const Workload::Parallel& parallel) -> std::string {
    try {
      best_of("host:2,rank:4", parallel);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(refusal({.tp = 3}), "TP 3 does not divide 8 ranks");
  EXPECT_EQ(refusal({.tp = 0}), "TP is 0, at least 1");
  EXPECT_EQ(refusal({.pp = 0}), "PP is 0, at least 1");
  EXPECT_EQ(refusal({.layers = 0}), "layers is 0, at least 1");
  EXPECT_EQ(refusal({.micro_batches = -1}), "micro-batches is -1, at least 1");
}

}  // namespace
}  // namespace ferry
