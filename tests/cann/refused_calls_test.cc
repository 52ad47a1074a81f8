// Every constraint of the operators is violated once: on one rank before and after legal calls, and
// on all ranks. The message states the value and the limit, the other ranks get the refusal, no
// output is written, and the group stays usable.
#include "refused_calls.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace ferry::test {
namespace {

constexpr int kOffender = 1;

enum class When { kFirst, kLater, kOnAllRanks };
const char* when_name(When when) {
  return when == When::kFirst ? "First" : when == When::kLater ? "Later" : "OnAllRanks";
}
void PrintTo(When when, std::ostream* stream) { *stream << when_name(when); }

template <typename Args>
Args legal_args(SmallCall& call, int rank) {
  if constexpr (std::is_same_v<Args, cann::DispatchArgs>) return call.dispatch(rank);
  // No dispatch wrote triplets.
  if constexpr (std::is_same_v<Args, cann::CombineArgs>) {
    cann::CombineArgs args = call.combine(rank);
    args.assist_info_for_combine = {};
    return args;
  }
  if constexpr (std::is_same_v<Args, cann::CombineAddRmsNormArgs>) {
    cann::CombineAddRmsNormArgs args = call.add_rms_norm(rank);
    args.combine.assist_info_for_combine = {};
    return args;
  }
}

cann::Result make_call(const cann::Communicator& communicator, const cann::DispatchArgs& args) {
  return moe_distribute_dispatch(communicator, args);
}
cann::Result make_call(const cann::Communicator& communicator, const cann::CombineArgs& args) {
  return moe_distribute_combine(communicator, args);
}
cann::Result make_call(const cann::Communicator& communicator,
                       const cann::CombineAddRmsNormArgs& args) {
  return moe_distribute_combine_add_rms_norm(communicator, args);
}

// Gives combine the counts of the dispatch with the same attributes.
void fill_counts(const cann::Attributes& attributes, SmallCall& call) {
  const auto tp = std::max<std::int64_t>(attributes.tp_world_size, 1);
  const std::int64_t entries = attributes.ep_world_size * SmallCall::kBs * SmallCall::kK;
  const std::int64_t local = attributes.moe_expert_num / attributes.ep_world_size;
  const std::int64_t block = local * attributes.ep_world_size;
  // Ten entries of each source in a row of six experts: the first four of them twice.
  std::int32_t sum = 0;
  for (std::int64_t turn = 0; turn < tp; ++turn) {
    sum = 0;
    for (std::int64_t i = 0; i < block; ++i) {
      const auto source = static_cast<int>(tp > 1 ? (attributes.tp_rank_id + turn) % tp
                                                  : i % attributes.ep_world_size);
      const auto expert =
          static_cast<int>(attributes.ep_rank_id * local + i / attributes.ep_world_size);
      const int place = (expert - source + 6) % 6;
      sum += place < 4 ? 2 : 1;
      call.ep_counts[turn * block + i] = sum;
    }
    call.tp_counts[tp > 1 ? (attributes.tp_rank_id + turn) % tp : 0] = sum;
  }
  require(sum > 0 && sum <= entries, "counts of the test itself");
}

template <typename Args>
const cann::Attributes& attributes_of(const Args& args) {
  if constexpr (std::is_same_v<Args, cann::CombineAddRmsNormArgs>)
    return args.combine.attributes;
  else
    return args.attributes;
}

// A call that is not spoiled succeeds.
template <typename Args>
void call_legally(const BadCall<Args>& bad, const cann::Communicator& communicator, int rank) {
  SmallCall call(rank);
  Args args = legal_args<Args>(call, rank);
  if (bad.setup) bad.setup(args, call);
  if constexpr (!std::is_same_v<Args, cann::DispatchArgs>) fill_counts(attributes_of(args), call);
  const cann::Result result = make_call(communicator, args);
  require(result.ok(), "a legal call: " + result.message());
}

template <typename Args>
void require_refused(const BadCall<Args>& bad, When when, const cann::Result& result, int rank) {
  const bool mine = when == When::kOnAllRanks || rank == kOffender;
  const std::string seen = std::to_string(static_cast<int>(result.code)) + " " + result.message();
  if (result.ok() && bad.leaves_out_rank_0 && rank == 0) return;  // it gets no refusal
  require(!result.ok(), "accepted");
  require(result.status.group_usable(), "the group is usable: " + seen);
  require(result.code == (mine ? bad.code : cann::StatusCode::kTilingError), "code: " + seen);
  for (const std::string& part : bad.parts)
    require(contains(result.message(), part), "no '" + part + "' in " + seen);
  require(result.message().starts_with("moe_distribute_"), "no operator's name: " + seen);
  if (mine) return;
  require(result.status.culprit() == kOffender, "the culprit: " + seen);
  require(contains(result.message(), "rank 1"), "the culprit's name: " + seen);
}

template <typename Args>
void try_bad(const BadCall<Args>& bad, When when) {
  const auto body = [&](Group group) {
    const int rank = group.rank();
    const cann::Communicator communicator(std::move(group), {.group_ep = "ep", .group_tp = "tp"});
    if (when == When::kLater) call_legally(bad, communicator, rank);
    SmallCall call(rank);
    Args args = legal_args<Args>(call, rank);
    if (bad.setup) bad.setup(args, call);
    if constexpr (!std::is_same_v<Args, cann::DispatchArgs>) {
      fill_counts(attributes_of(args), call);
    }
    if (when == When::kOnAllRanks || rank == kOffender) bad.spoil(args, call);
    const std::vector<std::int32_t> counts = call.ep_counts;
    const cann::Result result = make_call(communicator, args);
    require_refused(bad, when, result, rank);
    require(result.ok() || call.ep_counts == counts, "counts were written");
    if constexpr (std::is_same_v<Args, cann::DispatchArgs>)
      require(result.ok() || call.untouched(), "an output was written");
    call_legally(bad, communicator, rank);
    call_legally(bad, communicator, rank);
  };
  run_ranks(Mode::kThreads, SmallCall::kRanks, body, bad.name);
}

template <typename Args>
class Refused : public testing::TestWithParam<std::tuple<When, BadCall<Args>>> {};
using RefusedDispatch = Refused<cann::DispatchArgs>;
using RefusedCombine = Refused<cann::CombineArgs>;
using RefusedNorm = Refused<cann::CombineAddRmsNormArgs>;

TEST_P(RefusedDispatch, SaysWhyAndTheGroupGoesOn) {
  try_bad(std::get<1>(GetParam()), std::get<0>(GetParam()));
}
TEST_P(RefusedCombine, SaysWhyAndTheGroupGoesOn) {
  try_bad(std::get<1>(GetParam()), std::get<0>(GetParam()));
}
TEST_P(RefusedNorm, SaysWhyAndTheGroupGoesOn) {
  try_bad(std::get<1>(GetParam()), std::get<0>(GetParam()));
}

template <typename Args>
std::string bad_name(const testing::TestParamInfo<std::tuple<When, BadCall<Args>>>& info) {
  return std::string(std::get<1>(info.param).name) + "_" + when_name(std::get<0>(info.param));
}

const auto kWhen = testing::Values(When::kFirst, When::kLater, When::kOnAllRanks);
INSTANTIATE_TEST_SUITE_P(Attributes, RefusedDispatch,
                         testing::Combine(kWhen, testing::ValuesIn(kBadAttributes)),
                         bad_name<cann::DispatchArgs>);
INSTANTIATE_TEST_SUITE_P(RankIds, RefusedDispatch,
                         testing::Combine(testing::Values(When::kFirst, When::kLater),
                                          testing::ValuesIn(kBadRankIds)),
                         bad_name<cann::DispatchArgs>);
INSTANTIATE_TEST_SUITE_P(ElasticInfos, RefusedDispatch,
                         testing::Combine(kWhen, testing::ValuesIn(kBadElasticInfos)),
                         bad_name<cann::DispatchArgs>);
INSTANTIATE_TEST_SUITE_P(Tensors, RefusedDispatch,
                         testing::Combine(kWhen, testing::ValuesIn(kBadDispatches)),
                         bad_name<cann::DispatchArgs>);
INSTANTIATE_TEST_SUITE_P(Tensors, RefusedCombine,
                         testing::Combine(kWhen, testing::ValuesIn(kBadCombines)),
                         bad_name<cann::CombineArgs>);
INSTANTIATE_TEST_SUITE_P(Tensors, RefusedNorm,
                         testing::Combine(kWhen, testing::ValuesIn(kBadNorms)),
                         bad_name<cann::CombineAddRmsNormArgs>);

}  // namespace
}  // namespace ferry::test
