// The text that `ferry plan` prints.
#include "plan_report.h"

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
  EXPECT_THAT(text_of({.pp = 2}), testing::HasSubstr("a forward step of 2 layers in 2 stages"));
  // Their product is 8 * 2^32 + 1.
  EXPECT_THAT(text_of({.tp = 43, .pp = 843, .micro_batches = 947881}),
              testing::HasSubstr("843 stages, 947881 micro-batches"));
}

}  // namespace
}  // namespace ferry::tools
