// Plans of GPUs against published times: DeepEP V1's tables for H800 (its README, "Normal kernels
// with NVLink and RDMA forwarding" and "Low-latency kernels with pure RDMA"). docs/lab/plan_gpus.md
// has the same numbers.
#include <gmock/gmock.h>

#include <cmath>

#include "ferry/plan.h"
#include "traffic/traffic.h"

namespace ferry {
namespace {

constexpr double kTableTokens = 4096;
constexpr double kFp8Row = 7168 + 7168 / 128 * 4, kBf16Row = 2 * 7168;

// Rates are of logical bytes: one row for each rank (on one node, EP 8), or for each node, that a
// token goes to, the source's own included.
struct Published {
  int nodes, groups_chosen;
  double dispatch_gb_s, combine_gb_s;

  double copies() const {
    const int groups = nodes == 1 ? 8 : nodes, in_reach = 256 / nodes * groups_chosen;
    const double touched =
        internal::touch_probability(256 / groups, nodes == 1 ? 256 : in_reach, 8);
    return groups * touched * (nodes == 1 ? 1 : double(groups_chosen) / nodes);
  }
  double dispatch_us() const { return copies() * kTableTokens * kFp8Row / dispatch_gb_s / 1e3; }
  double combine_us() const { return copies() * kTableTokens * kBf16Row / combine_gb_s / 1e3; }
};
constexpr Published kNormal[] = {{1, 1, 153, 158}, {2, 2, 43, 43}, {4, 4, 58, 57}, {8, 4, 51, 50}};

Prediction planned(const Published& row, const std::string& options = "") {
  Workload workload{
      .exchange = {.max_tokens = 4096, .hidden = 7168, .num_experts = 256, .top_k = 8}};
  workload.exchange.wire = Wire::kFp8;
  workload.groups = row.nodes, workload.groups_chosen = row.groups_chosen;
  return plan(Machine::parse("h800:" + std::to_string(row.nodes) + options), workload,
              {.doubled = false})
      .predictions.front();
}

TEST(Published, NormalKernelsOfH800WithinSevenPercent) {
  for (const Published& row : kNormal) {
    SCOPED_TRACE(row.nodes * 8);
    const Prediction best = planned(row);
    EXPECT_NEAR(best.dispatch_us / row.dispatch_us(), 1, 0.07);
    EXPECT_NEAR(best.combine_us / row.combine_us(), 1, 0.07);
  }
}

// With the rates that are stated for the machine, 160 and 50 GB/s, all plans are too fast.
TEST(Published, StatedRatesAreTooFast) {
  for (const Published& row : kNormal) {
    SCOPED_TRACE(row.nodes * 8);
    const Prediction best = planned(row, "@nvswitch=160GB/s@nic=50GB/s");
    for (const double ratio :
         {best.dispatch_us / row.dispatch_us(), best.combine_us / row.combine_us()}) {
      EXPECT_GT(ratio, 0.76);
      EXPECT_LT(ratio, 0.92);
    }
  }
}

// The preset has the rates for which the geometric mean of planned time over published time is 1:
// the rate of the switch by the rows of one and two nodes, that of the NIC by those of four and
// eight.
TEST(Published, TheRatesOfThePresetAreFittedToTheTable) {
  double log_switch = 0, log_nic = 0;
  for (const Published& row : kNormal) {
    const Prediction best = planned(row);
    EXPECT_EQ(best.limited_by, row.nodes <= 2 ? "nvswitch" : "nic");
    (row.nodes <= 2 ? log_switch : log_nic) += std::log(best.dispatch_us / row.dispatch_us()) +
                                               std::log(best.combine_us / row.combine_us());
  }
  EXPECT_NEAR(std::exp(log_switch / 4), 1, 0.005);
  EXPECT_NEAR(std::exp(log_nic / 4), 1, 0.005);
  for (const Machine::Port& port : Machine::parse("h800:2").ports)
    EXPECT_THAT(port.source, testing::StartsWith("fitted: DeepEP V1's table"));
}

// These rows are not fitted: 128 tokens, every row over the NIC of its rank, EP 128 and 256. Small
// messages take longer than their bytes would at the fitted rate.
TEST(Published, LowLatencyPlansAreUpToFourteenPercentTooFast) {
  const double rows[][3] = {{16, 192, 369}, {32, 194, 360}};
  for (const auto& [nodes, dispatch_us, combine_us] : rows) {
    SCOPED_TRACE(nodes * 8);
    const std::string tree = "host:" + std::to_string(static_cast<int>(nodes)) + ",rank:8\n";
    Workload workload{
        .exchange = {.max_tokens = 128, .hidden = 7168, .num_experts = 256, .top_k = 8}};
    workload.exchange.wire = Wire::kFp8;
    const Machine machine = Machine::parse(tree + "link ib mesh all port nic\nport nic 44.5GB/s");
    for (const Prediction& one : plan(machine, workload, {.doubled = false}).predictions) {
      if (one.strategy != "fullmesh") continue;
      EXPECT_THAT(one.dispatch_us / dispatch_us, testing::AllOf(testing::Gt(0.86), testing::Lt(1)));
      EXPECT_THAT(one.combine_us / combine_us, testing::AllOf(testing::Gt(0.86), testing::Lt(1)));
    }
  }
}

}  // namespace
}  // namespace ferry
