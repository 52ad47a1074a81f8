// ferry_plan_*: the C ABI of libferry_plan.
#include "ferry/plan.h"

#include <fmt/format.h>

#include <memory>

#include "capi/boundary.h"
#include "capi/config.h"
#include "ferry/ferry_plan.h"

// NOLINTBEGIN(readability-identifier-naming)

struct ferry_plan {
  ferry::Plan plan = {};
};

// NOLINTEND(readability-identifier-naming)

using namespace ferry::capi;

namespace ferry::capi {
namespace {

Workload to_workload(const ferry_plan_args& args) {
  Workload workload{.exchange = to_config(&required(args.config, "ferry_plan_args: config"))};
  if (args.groups > 0) workload.groups = args.groups;
  workload.groups_chosen = args.groups_chosen > 0 ? args.groups_chosen : workload.groups;
  if (args.loads && workload.exchange.num_experts > 0)
    workload.loads.assign(args.loads, args.loads + workload.exchange.num_experts);
  return workload;
}

}  // namespace
}  // namespace ferry::capi

ferry_code ferry_plan_create(const ferry_plan_args* args, ferry_plan** plan) {
  return guarded([&] {
    required(plan, "plan") = nullptr;
    const ferry_plan_args given = read(args, "ferry_plan_args");
    const ferry::Machine machine =
        ferry::Machine::parse(&required(given.machine, "ferry_plan_args: machine"));
    auto made = std::make_unique<ferry_plan>();
    made->plan = ferry::plan(machine, to_workload(given), {.doubled = false});
    *plan = made.release();
  });
}

void ferry_plan_destroy(ferry_plan* plan) { delete plan; }

int32_t ferry_plan_size(const ferry_plan* plan) {
  return plan ? static_cast<int32_t>(plan->plan.predictions.size()) : 0;
}

ferry_code ferry_plan_prediction(const ferry_plan* plan, int32_t index,
                                 ferry_prediction* prediction) {
  return guarded([&] {
    check_struct(prediction, "ferry_prediction");
    const auto& all = required(plan, "plan").plan.predictions;
    if (index < 0 || index >= ferry_plan_size(plan))
      throw ferry::Error(ferry::Code::kInvalidArgument,
                         fmt::format("index is {}, need [0, {})", index, all.size()));
    const ferry::Prediction& from = all[index];
    ferry_prediction known = {};
    known.strategy = from.strategy.c_str();
    known.limited_by = from.limited_by.c_str();
    known.dispatch_us = from.dispatch_us;
    known.combine_us = from.combine_us;
    known.dispatch_bound_us = from.dispatch_bound_us;
    known.combine_bound_us = from.combine_bound_us;
    known.received_bytes = from.received_bytes;
    known.staged_bytes = from.staged_bytes;
    write(known, prediction);
  });
}

const char* ferry_plan_sentence(const ferry_plan* plan) {
  return plan ? plan->plan.sentence.c_str() : nullptr;
}
