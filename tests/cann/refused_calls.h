// Calls that must be refused, as tables: what is wrong with each, the code and what the message
// must say. refused_calls_test.cc tries them.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "small_call.h"

namespace ferry::test {

// What one rank does to its legal call, as `spoil` or `setup` of a row: statements on its arguments
// `a` and their memory `c`.
#define SPOIL(...) []([[maybe_unused]] auto& a, [[maybe_unused]] SmallCall& c) { __VA_ARGS__; }

// Args is DispatchArgs, CombineArgs or CombineAddRmsNormArgs.
template <typename Args>
struct BadCall {
  const char* name;
  std::function<void(Args&, SmallCall&)> spoil;
  cann::StatusCode code;
  std::vector<std::string> parts;  // of the message
  // What all ranks change in the legal call before.
  std::function<void(Args&, SmallCall&)> setup = {};
  bool leaves_out_rank_0 = false;  // that call, by its elastic_info
};
template <typename Args>
void PrintTo(const BadCall<Args>& bad, std::ostream* stream) {
  *stream << bad.name;
}

// A setup: all three ranks as one tensor-parallel group.
template <typename Args>
void one_tp_group(Args& a, SmallCall&) {
  a.attributes.tp_world_size = 3;
  a.attributes.tp_rank_id = a.attributes.ep_rank_id;
  a.attributes.ep_world_size = 1;
  a.attributes.ep_rank_id = 0;
}

extern const std::vector<BadCall<cann::DispatchArgs>> kBadAttributes;
// Wrong on one rank only.
extern const std::vector<BadCall<cann::DispatchArgs>> kBadRankIds;
extern const std::vector<BadCall<cann::DispatchArgs>> kBadElasticInfos;
extern const std::vector<BadCall<cann::DispatchArgs>> kBadDispatches;
extern const std::vector<BadCall<cann::CombineArgs>> kBadCombines;
extern const std::vector<BadCall<cann::CombineAddRmsNormArgs>> kBadNorms;

}  // namespace ferry::test
