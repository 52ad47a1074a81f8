// Bad calls: each is an error whose message names the value and the limit; the errors of the other
// ranks name the refused rank and the reason; the next call works.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bad_calls.h"

namespace ferry::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<BadDispatch> kBadDispatches = {
    {"IdPastTheLastExpert", SPOIL(s.ids[3 * kTopK + 1] = 6), {"6", "token 3", "k 1", "-1"}},
    {"IdBelowMinusOne", SPOIL(s.ids[0] = -2), {"-2", "token 0", "k 0"}},
    {"HugeId", SPOIL(s.ids[2] = std::int64_t{1} << 32), {"4294967296", "token 1", "k 0"}},
    {"NarrowIdOutOfRange",
     SPOIL(s.narrow_ids[5] = 77; a.topk_ids.data = s.narrow_ids.data();
           a.topk_ids.type = IndexType::kInt32),
     {"77", "token 2", "k 1"}},
    {"TooManyTokens", SPOIL(a.tokens.num_rows = a.topk_ids.num_tokens = kTokens + 1), {"9", "8"}},
    {"NegativeTokens", SPOIL(a.tokens.num_rows = a.topk_ids.num_tokens = -1), {"-1"}},
    {"AbsurdlyManyTokens",
     SPOIL(a.tokens.num_rows = a.topk_ids.num_tokens = std::int64_t{1} << 62),
     {"4611686018427387904", "8"}},
    {"OtherHidden", SPOIL(a.tokens.hidden = 31), {"31", "32"}},
    {"OtherType", SPOIL(a.tokens.dtype = DataType::kFp32), {"fp32", "bf16"}},
    {"UnknownType", SPOIL(a.tokens.dtype = static_cast<DataType>(99)), {"bf16"}},
    {"NullTokens", SPOIL(a.tokens.data = nullptr), {"null", "8"}},
    {"NullIds", SPOIL(a.topk_ids.data = nullptr), {"null", "8"}},
    {"IdsOfOtherTokens", SPOIL(a.topk_ids.num_tokens = 7), {"7", "8"}},
    {"IdsOfOtherK", SPOIL(a.topk_ids.top_k = 3), {"3", "2"}},
    {"IdsOfUnknownType", SPOIL(a.topk_ids.type = static_cast<IndexType>(9)), {"9", "int32"}},
    {"PitchBelowARow", SPOIL(a.tokens.pitch_bytes = 62), {"62", "64"}},
    {"NegativePitch", SPOIL(a.tokens.pitch_bytes = -64), {"-64", "64"}},
    {"NanWeight",
     SPOIL(s.weights[4 * kTopK + 1] = kNan; a.topk_weights = s.weights.data()),
     {"nan", "token 4", "k 1"}},
};

const std::vector<BadCombine> kBadCombines = {
    {"EmptyHandle", SPOIL(a.handle = Handle{}), {"handle"}},
    {"RowsOfBytes", SPOIL(a.expert_rows.dtype = DataType::kBytes), {"bytes", "bf16"}},
    {"OutOfBytes", SPOIL(a.out_dtype = DataType::kBytes), {"bytes", "bf16"}},
    {"OutOfUnknownType", SPOIL(a.out_dtype = static_cast<DataType>(77)), {"out"}},
    {"HiddenOfZero", SPOIL(a.expert_rows.hidden = 0), {"hidden 0"}},
    {"HiddenPastTheLimit", SPOIL(a.expert_rows.hidden = 65), {"65", "64"}},
    {"AbsurdHidden", SPOIL(a.expert_rows.hidden = std::int64_t{1} << 62), {"4611686018427387904"}},
    {"OtherNumberOfRows", SPOIL(a.expert_rows.num_rows = 999), {"999"}},
    {"NullRows", SPOIL(a.expert_rows.data = nullptr), {"null"}},
    {"NullOut", SPOIL(a.out = nullptr), {"null", "8"}},
    {"RowPitchBelowARow",
     SPOIL(a.expert_rows.data = s.memory.data(); a.expert_rows.pitch_bytes = 63),
     {"63", "64"}},
    {"OutPitchBelowARow", SPOIL(a.out_pitch_bytes = 10), {"10"}},
    {"NegativeOutPitch", SPOIL(a.out_pitch_bytes = -200), {"-200"}},
    {"OutOverlapsTheRows",
     SPOIL(a.expert_rows.data = s.memory.data(); a.expert_rows.pitch_bytes = 0;
           a.out = s.memory.data() + 100),
     {"overlap"}},
    {"OutOverlapsABias",
     SPOIL(a.out = s.memory.data(); a.bias[1] = s.memory.data() + 64),
     {"overlap", "bias 1"}},
    {"BiasIsOutWithAPitch",
     SPOIL(a.out = s.memory.data(); a.out_pitch_bytes = 256; a.bias[0] = a.out),
     {"overlaps bias 0"}},
    {"OutOverlapsTheWeights",
     SPOIL(a.topk_weights = s.weights.data(); a.out = s.weights.data()),
     {"overlap", "weights"}},
    {"WeightsOverOut",
     SPOIL(a.row_weights = reinterpret_cast<const float*>(s.memory.data());
           a.out_topk_weights = static_cast<float*>(a.out)),
     {"out_topk_weights overlaps out"}},
    {"WeightsBesideTheWeights",
     SPOIL(a.row_weights = reinterpret_cast<const float*>(s.memory.data());
           s.weights.resize(kTokens * kTopK + 1); a.topk_weights = s.weights.data();
           a.out_topk_weights = s.weights.data() + 1),
     {"out_topk_weights overlaps topk_weights without being the same"}},
    {"NanWeight",
     SPOIL(s.weights[5 * kTopK] = kNan; a.topk_weights = s.weights.data()),
     {"nan", "token 5", "k 0"}},
    {"WeightsHomeWithoutRowWeights",
     SPOIL(a.row_weights = nullptr; a.out_topk_weights = reinterpret_cast<float*>(s.memory.data())),
     {"row_weights"}},
};

template <typename Bad>
class BadInput : public testing::TestWithParam<std::tuple<Mode, Bad>> {};
using BadDispatches = BadInput<BadDispatch>;
using BadCombines = BadInput<BadCombine>;

TEST_P(BadDispatches, AreRefusedAndTheGroupWorksAfter) {
  try_bad_dispatch(std::get<0>(GetParam()), two_rounds(), std::get<1>(GetParam()));
}

TEST_P(BadCombines, AreRefusedAndTheGroupWorksAfter) {
  try_bad_combine(std::get<0>(GetParam()), two_rounds(), std::get<1>(GetParam()));
}

template <typename Bad>
std::string bad_name(const testing::TestParamInfo<std::tuple<Mode, Bad>>& info) {
  return std::string(std::get<1>(info.param).name) + "_" + mode_name(std::get<0>(info.param));
}

const auto kModes = testing::Values(Mode::kThreads, Mode::kProcesses);
INSTANTIATE_TEST_SUITE_P(All, BadDispatches,
                         testing::Combine(kModes, testing::ValuesIn(kBadDispatches)),
                         bad_name<BadDispatch>);
INSTANTIATE_TEST_SUITE_P(All, BadCombines,
                         testing::Combine(kModes, testing::ValuesIn(kBadCombines)),
                         bad_name<BadCombine>);

TEST(BadWeights, RankMajorCombineTakesNone) {
  ExchangeConfig config = small_config();
  config.layout = Layout::kRankMajor;
  const auto spoil = [](CombineArgs& args, Scratch& scratch) {
    args.topk_weights = scratch.weights.data();
  };
  try_bad_combine(Mode::kThreads, two_rounds(config),
                  {"RankMajorWeights", spoil, {"rank_major", "topk_weights"}});
}

// Values that no rule forbids: an id that is masked, a NaN weight of an entry that is not sent.
TEST(GoodInput, WhatIsNotSentIsNotLookedAt) {
  Scenario scenario = plain_scenario(kRanks, small_config(), 1, 72);
  for (internal::RankInput& input : scenario.rounds[0].inputs) {
    input.topk_ids[4] = -1;
    input.topk_weights[4] = kNan;
  }
  expect_dispatch(scenario.config, scenario.rounds[0]);
  run_ranks(Mode::kThreads, kRanks, [&](Group group) { Seat(group, scenario).dispatch(0); });
}

}  // namespace
}  // namespace ferry::test
