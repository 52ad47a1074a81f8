// The planner gives the same results through the C ABI as in C++.
#include "ferry/plan.h"

#include <gtest/gtest.h>

#include "ferry/ferry_plan.h"
#include "seat.h"

namespace ferry::test {
namespace {

struct Planned {
  explicit Planned(const ferry_plan_args& args) { code = ferry_plan_create(&args, &plan); }
  ~Planned() { ferry_plan_destroy(plan); }
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;

  ferry_code code;
  ferry_plan* plan = nullptr;
};

ferry_config deepseek() {
  auto config = sized<ferry_config>();
  config.max_tokens = 4096, config.hidden = 7168, config.num_experts = 256, config.top_k = 8;
  config.layout = FERRY_LAYOUT_EXPERT_MAJOR;
  return config;
}

TEST(CapiPlan, IsThatOfCxx) {
  const ferry_config config = deepseek();
  auto args = sized<ferry_plan_args>();
  args.machine = "ubbv2:2@port10", args.config = &config;
  const Planned planned(args);
  expect_ok(planned.code);
  const Plan expected =
      plan(Machine::parse("ubbv2:2@port10"),
           {.exchange = {.max_tokens = 4096, .hidden = 7168, .num_experts = 256, .top_k = 8}});
  ASSERT_EQ(ferry_plan_size(planned.plan), std::ssize(expected.predictions));
  EXPECT_EQ(ferry_plan_sentence(planned.plan), expected.sentence);
  for (int i = 0; i < ferry_plan_size(planned.plan); ++i) {
    auto seen = sized<ferry_prediction>();
    expect_ok(ferry_plan_prediction(planned.plan, i, &seen));
    EXPECT_EQ(seen.strategy, expected.predictions[i].strategy);
    EXPECT_EQ(seen.limited_by, expected.predictions[i].limited_by);
    EXPECT_EQ(seen.dispatch_us, expected.predictions[i].dispatch_us);
    EXPECT_EQ(seen.combine_us, expected.predictions[i].combine_us);
    EXPECT_EQ(seen.dispatch_bound_us, expected.predictions[i].dispatch_bound_us);
    EXPECT_EQ(seen.combine_bound_us, expected.predictions[i].combine_bound_us);
    EXPECT_EQ(seen.received_bytes, expected.predictions[i].received_bytes);
    EXPECT_EQ(seen.staged_bytes, expected.predictions[i].staged_bytes);
  }
}

TEST(CapiPlan, RoutingIsTaken) {
  const ferry_config config = deepseek();
  auto args = sized<ferry_plan_args>();
  args.machine = "h800:8", args.config = &config;
  const auto best_us = [&] {
    const Planned planned(args);
    expect_ok(planned.code);
    auto best = sized<ferry_prediction>();
    expect_ok(ferry_plan_prediction(planned.plan, 0, &best));
    return best.dispatch_us;
  };
  const double uniform = best_us();
  args.groups = 8, args.groups_chosen = 4;
  EXPECT_LT(best_us(), 0.9 * uniform);
  args.groups = args.groups_chosen = 0;
  std::vector<double> loads(256, 1.0);
  for (int i = 0; i < 8; ++i) loads[i] = 5;
  args.loads = loads.data();
  EXPECT_GT(best_us(), 1.05 * uniform);
}

TEST(CapiPlan, RefusesAConfigurationOutsideItsNames) {
  const std::vector<double> loads(deepseek().num_experts, 1.0);
  const auto expect_refused = [&](auto ferry_config::*member, int value, const char* why) {
    ferry_config config = deepseek();
    config.*member = value;
    auto args = sized<ferry_plan_args>();
    args.machine = "h800:2", args.config = &config, args.loads = loads.data();
    expect_error(Planned(args).code, FERRY_INVALID_ARGUMENT, {why});
  };
  expect_refused(&ferry_config::wire, 77, "wire is 77, not one of 0 to 5");
  expect_refused(&ferry_config::combine_wire, 77, "combine_wire is 77, not one of 0 to 3");
  expect_refused(&ferry_config::dtype, 77, "dtype is 77");
  expect_refused(&ferry_config::tp_size, -1, "tp_size is -1, at least 1");
  expect_refused(&ferry_config::num_experts, -1, "experts is -1, at least 1");
}

TEST(CapiPlan, RefusesWhatCannotBe) {
  const ferry_config config = deepseek();
  auto args = sized<ferry_plan_args>();
  args.config = &config;
  expect_error(Planned(args).code, FERRY_INVALID_ARGUMENT, {"ferry_plan_args: machine"});
  args.machine = "ubbv3:2";
  expect_error(Planned(args).code, FERRY_INVALID_ARGUMENT, {"ubbv3", "did you mean 'ubbv2'"});
  args.machine = "h800:2", args.config = nullptr;
  expect_error(Planned(args).code, FERRY_INVALID_ARGUMENT, {"ferry_plan_args: config"});
  args.config = &config, args.struct_size = 0;
  expect_error(Planned(args).code, FERRY_INVALID_ARGUMENT, {"ferry_plan_args: struct_size is 0"});
  args.struct_size = sizeof args;
  const Planned planned(args);
  expect_ok(planned.code);
  auto prediction = sized<ferry_prediction>();
  expect_error(ferry_plan_prediction(planned.plan, 9, &prediction), FERRY_INVALID_ARGUMENT,
               {"index is 9, need [0, "});
  expect_error(ferry_plan_prediction(nullptr, 0, &prediction), FERRY_INVALID_ARGUMENT, {"plan"});
  prediction.version = 0;
  expect_error(ferry_plan_prediction(planned.plan, 0, &prediction), FERRY_INVALID_ARGUMENT,
               {"ferry_prediction: version is 0"});
  EXPECT_EQ(ferry_plan_size(nullptr), 0);
  EXPECT_EQ(ferry_plan_sentence(nullptr), nullptr);
}

}  // namespace
}  // namespace ferry::test
