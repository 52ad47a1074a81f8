// Calls that must be refused, as tables: the fault of each call, its code, and parts of its
// message.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "small_call.h"

namespace ferry::test {

// `spoil` or `setup` of a row: statements that change the legal call of one rank, by its arguments
// `a` and their memory `c`.
#define SPOIL(...) []([[maybe_unused]] auto& a, [[maybe_unused]] SmallCall& c) { __VA_ARGS__; }

// Args is DispatchArgs, CombineArgs or CombineAddRmsNormArgs.
template <typename Args>
struct BadCall {
  const char* name;
  std::function<void(Args&, SmallCall&)> spoil;
  cann::StatusCode code;
  std::vector<std::string> parts;  // of the message
  // The change that all ranks make to the legal call first.
  std::function<void(Args&, SmallCall&)> setup = {};
  bool leaves_out_rank_0 = false;  // the elastic_info of the call excludes rank 0
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
// The call is wrong on one rank only.
extern const std::vector<BadCall<cann::DispatchArgs>> kBadRankIds;
extern const std::vector<BadCall<cann::DispatchArgs>> kBadElasticInfos;
extern const std::vector<BadCall<cann::DispatchArgs>> kBadDispatches;
extern const std::vector<BadCall<cann::CombineArgs>> kBadCombines;
extern const std::vector<BadCall<cann::CombineAddRmsNormArgs>> kBadNorms;

}  // namespace ferry::test
