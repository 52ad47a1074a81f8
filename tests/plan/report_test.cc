// The text that `ferry plan` prints.
#include "tools/plan/report.h"

#include "tools/plan/expect.h"

#include <gmock/gmock.h>

namespace ferry::tools {
namespace {

std::string text_of(const Workload::Parallel& parallel) {
  PlannedPoint point{
      .machine = Machine::parse("rank:43@1GB/s"),
      .workload = {.exchange = {.max_tokens = 43, .hidden = 8, .num_experts = 43, .top_k = 1},
                   .parallel = parallel},
      .plan = {}};
  point.plan = plan(point.machine, point.workload);
  return plan_text(point, false);
}

TEST(PlanReport, StepsAreToldWhereTheLayoutHasAny) {
  EXPECT_THAT(text_of({}), testing::Not(testing::HasSubstr("a forward step")));
  EXPECT_THAT(text_of({.pp = 2, .layers = 2}),
              testing::HasSubstr("a forward step of 2 layers in 2 stages, 1 micro"));
  // Their product is 8 * 2^32 + 1.
  EXPECT_THAT(text_of({.tp = 43, .pp = 843, .layers = 843, .micro_batches = 947881}),
              testing::HasSubstr("843 stages, 947881 micro-batches"));
}

TEST(PlanReport, LayersThatStagesDoNotDivideAreTold) {
  const std::string text = text_of({.pp = 7, .layers = 58});
  EXPECT_THAT(text, testing::HasSubstr("a forward step of 58 layers in 7 stages of at most 9"));
  EXPECT_THAT(text, testing::HasSubstr("note: 58 layers do not divide into 7 stages"));
  EXPECT_THAT(text_of({.pp = 29, .layers = 58}), testing::Not(testing::HasSubstr("divide")));
}

TEST(PlanExpect, SaysThatABenchRanWithTheCoresElsewhere) {
  const Machine machine = Machine::parse("rank:8\nhost flag 26ns");
  EXPECT_EQ(elsewhere_text(machine, {{"flags_ns", {25, 26, 30, 27}}}), "");
  EXPECT_THAT(
      elsewhere_text(machine, {{"flags_ns", {160, 165, 170, 161}}}),
      testing::HasSubstr("26 ns from one to the next when this machine was calibrated, 160 to "
                         "170 in the bench"));
  EXPECT_EQ(elsewhere_text(Machine::parse("rank:8"), {{"flags_ns", {160}}}), "");
  EXPECT_EQ(elsewhere_text(machine, nlohmann::json::object()), "");  // an older bench
}

}  // namespace
}  // namespace ferry::tools
