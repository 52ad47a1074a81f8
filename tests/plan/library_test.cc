// libferry_plan as a program links it: by ferry::plan, which also links libferry. Errors pass from
// one library to the other, in C++ and in C.
#include <gtest/gtest.h>

#include <string>

#include "ferry/ferry_plan.h"
#include "ferry/plan.h"
#include "ferry/status.h"

namespace ferry {
namespace {

template <typename Struct>
Struct sized() {
  Struct made = {};
  made.struct_size = sizeof made, made.version = FERRY_ABI_VERSION;
  return made;
}

TEST(PlanLibrary, PlansAMachine) {
  const Workload workload{
      .exchange = {.max_tokens = 4096, .hidden = 7168, .num_experts = 256, .top_k = 8}};
  const Plan found = plan(Machine::parse("ubbv2:2@port10"), workload);
  EXPECT_EQ(found.predictions.front().strategy, "split");
  EXPECT_EQ(found.predictions.size(), 7U);
  EXPECT_FALSE(models().empty());
  EXPECT_EQ(find_model("deepseek-v3").experts, 256);
}

TEST(PlanLibrary, ThrowsTheErrorOfLibferry) {
  try {
    Machine::parse("ubbv2:0");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
  }
}

TEST(PlanLibrary, ItsErrorsInCAreThoseOfTheThread) {
  auto config = sized<ferry_config>();
  config.max_tokens = 1, config.hidden = 64, config.num_experts = 8, config.top_k = 2;
  auto args = sized<ferry_plan_args>();
  args.machine = "rank:8\nlink in mush all", args.config = &config;
  ferry_plan* plan = nullptr;
  EXPECT_EQ(ferry_plan_create(&args, &plan), FERRY_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
  EXPECT_NE(std::string(ferry_last_error_message()).find("mush"), std::string::npos)
      << ferry_last_error_message();
  EXPECT_EQ(ferry_last_error_rank(), -1);
}

}  // namespace
}  // namespace ferry
