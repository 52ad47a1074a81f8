// Bad calls of wires, scales, special and replicated experts, active ranks and
// the fused norm: each names the value and the rule, and the next call works.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bad_calls.h"

namespace ferry::test {
namespace {

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

// ---- dispatch

ExchangeConfig int8_config() {
  ExchangeConfig config = small_config();
  config.wire = Wire::kInt8;
  config.special = {.zero = 1, .copy = 1, .constant = 1};
  return config;
}

void point_scales(DispatchArgs& args, Scratch& scratch, int rows, std::int64_t channels) {
  scratch.weights.assign(static_cast<std::size_t>(rows * channels), 1.0F);
  args.scales = {scratch.weights.data(), rows, channels};
}

constexpr int kOutside[] = {0, 3}, kTwice[] = {1, 1};

const std::vector<BadDispatch> kBadFeatureDispatches = {
    {"IdPastTheSpecialOnes", SPOIL(s.ids[1] = 9), {"9", "token 0", "k 1", "[-1, 9)"}},
    {"NanWeightOfASpecialExpert",
     SPOIL(s.ids[1] = 7; s.weights.assign(kTokens * kTopK, 1.0F); s.weights[1] = kNotANumber;
           a.topk_weights = s.weights.data()),
     {"token 0", "k 1", "NaN"}},
    {"ScaleRowsForOtherExperts", SPOIL(point_scales(a, s, 5, 1)), {"[5, 1]", "1 or 6"}},
    {"ScalesOfOtherHidden", SPOIL(point_scales(a, s, 1, 31)), {"[1, 31]", "32"}},
    {"NanScale",
     SPOIL(point_scales(a, s, 6, 32); s.weights[2 * 32 + 7] = kNotANumber),
     {"row 2", "channel 7", "nan"}},
    {"ScalesOfTheirOwn",
     SPOIL(a.token_scales = s.memory.data()),
     {"token_scales", "given", "scale_bytes 0"}},
    {"ActiveRankOutside", SPOIL(a.active_ranks = kOutside), {"active_ranks[1] is 3", "[0, 3)"}},
    {"ActiveRankTwice", SPOIL(a.active_ranks = kTwice), {"active_ranks[1] is 1", "distinct"}},
};

class BadFeatureDispatches : public testing::TestWithParam<BadDispatch> {};

TEST_P(BadFeatureDispatches, AreRefusedAndTheGroupWorksAfter) {
  try_bad_dispatch(Mode::kThreads, two_rounds(int8_config()), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, BadFeatureDispatches, testing::ValuesIn(kBadFeatureDispatches),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BadFeatures, ScalesWithoutAnInt8Wire) {
  try_bad_dispatch(Mode::kThreads, two_rounds(),
                   {"Scales", SPOIL(point_scales(a, s, 1, 1)), {"int8", "none"}});
}

TEST(BadFeatures, ScalesByExpertInRowsOfSeveral) {
  ExchangeConfig config = int8_config();
  config.layout = Layout::kRankMajor;
  config.special = {};
  try_bad_dispatch(Mode::kThreads, two_rounds(config),
                   {"Scales", SPOIL(point_scales(a, s, 6, 1)), {"6 rows", "rank_major", "need 1"}});
}

TEST(BadFeatures, InstancesThatAreNotThere) {
  ExchangeConfig config = small_config();
  config.replicas = {.instances = {{0, 3}, {1}, {2, 4, 5}}, .choice = ReplicaChoice::kByTable};
  const std::vector<std::int32_t> table = {0, 0, 3};
  Scenario scenario = two_rounds(config);
  for (Round& round : scenario.rounds) {
    for (internal::RankInput& input : round.inputs) {
      for (std::int64_t& id : input.topk_ids) id %= 3;
      input.replica_table = {1, 0, 2};
    }
    Random random(5);
    expect_dispatch(scenario.config, round);
    round.combines = {random_combine(scenario.config, round, config.hidden, config.dtype, random)};
  }
  try_bad_dispatch(Mode::kThreads, scenario,
                   {"Table",
                    [&](DispatchArgs& a, Scratch&) { a.replica_table = table.data(); },
                    {"replica_table[2] is 3", "3 instances"}});
  try_bad_dispatch(Mode::kThreads, scenario,
                   {"NoTable", SPOIL(a.replica_table = nullptr), {"null"}});
}

// Every rank is told who named other ranks, both lists, and the next call works.
TEST(BadFeatures, RanksThatDoNotAgreeWhoTakesPart) {
  const Scenario scenario = two_rounds();
  run_ranks(Mode::kThreads, kRanks, [&](Group group) {
    Seat seat(group, scenario);
    DispatchCall call = seat.dispatch_call(0);
    const int others[] = {2, 0, 1};
    if (seat.rank() == kOffender) call.args().active_ranks = others;
    Received received;
    const Status status = seat.exchange().dispatch(call.args(), received);
    require_status(status, Code::kMismatch, {"rank 1", "[2, 0, 1]"}, "dispatch");
    require(status.group_usable() && status.culprit() == kOffender, "usable, and the culprit");
    seat.play(1);
  });
}

// The offender spoils a dispatch with a handle and weights, which is refused on all ranks.
void try_bad_cached_dispatch(const BadDispatch& bad) {
  const Scenario scenario = two_rounds();
  run_ranks(Mode::kThreads, kRanks, [&](Group group) {
    Seat seat(group, scenario);
    const Handle handle = seat.dispatch(0).handle;
    DispatchCall call = seat.dispatch_call(0);
    Scratch scratch;
    scratch.weights = scenario.rounds[0].inputs[seat.rank()].topk_weights;
    DispatchArgs args = {
        .tokens = call.args().tokens, .topk_weights = scratch.weights.data(), .cached = handle};
    if (seat.rank() == kOffender) bad.spoil(args, scratch);
    Received received;
    const Status status = seat.exchange().dispatch(args, received);
    require(status.group_usable() && status.culprit() == kOffender, status.message());
    require_status(status, seat.rank() == kOffender ? Code::kInvalidArgument : Code::kPeerRejected,
                   bad.parts, "dispatch");
    seat.play(1);
  });
}

// A handle's rows are numbered by the ranks it was made with.
TEST(BadFeatures, CachedHandleOfOtherActiveRanks) {
  static constexpr int kOthers[] = {2, 0, 1};
  try_bad_cached_dispatch(
      {"OtherRanks", SPOIL(a.active_ranks = kOthers), {"[2, 0, 1]", "cached handle"}});
}

// The weights of a cached dispatch are looked at, too.
TEST(BadFeatures, NanWeightOfACachedDispatch) {
  try_bad_cached_dispatch({"NanWeight",
                           SPOIL(std::ranges::fill(s.weights, kNotANumber)),
                           {"the weight at token", "NaN"}});
}

// ---- combine

// Round 0 has a copy and a constant expert in every token of every rank.
Scenario special_rounds() {
  Scenario scenario = two_rounds(int8_config());
  Round& round = scenario.rounds[0];
  for (internal::RankInput& input : round.inputs) {
    for (std::int64_t t = 0; t < input.num_tokens; ++t) {
      input.topk_ids[t * kTopK] = 7;
      input.topk_ids[t * kTopK + 1] = 8;
    }
  }
  Random random(5);
  expect_dispatch(scenario.config, round);
  round.combines = {random_combine(scenario.config, round, 32, DataType::kBf16, random)};
  return scenario;
}

void add_norm(CombineArgs& args, Scratch& scratch) {
  std::byte* at = scratch.memory.data();
  args.norm = {.residual = at, .gamma = at + 8192, .epsilon = 1e-6F, .y = at + 16384};
}

const std::vector<BadCombine> kBadFeatureCombines = {
    {"CopiesOfNothing", SPOIL(a.dispatched = nullptr), {"copy", "dispatched->tokens", "[8, 32]"}},
    {"NoConstants", SPOIL(a.constants = {}), {"constant", "alpha1", "alpha2"}},
    {"NormWithoutGamma", SPOIL(add_norm(a, s), a.norm.gamma = nullptr), {"gamma"}},
    {"NormWithoutY", SPOIL(add_norm(a, s), a.norm.y = nullptr), {"gamma and y"}},
    {"NegativeEpsilon", SPOIL(add_norm(a, s), a.norm.epsilon = -1.0F), {"epsilon", "-1"}},
    {"NanEpsilon", SPOIL(add_norm(a, s), a.norm.epsilon = kNotANumber), {"epsilon", "nan"}},
    {"InfiniteEpsilon",
     SPOIL(add_norm(a, s), a.norm.epsilon = std::numeric_limits<float>::infinity()),
     {"epsilon", "inf"}},
    {"NormWithoutResidual", SPOIL(add_norm(a, s), a.norm.residual = nullptr), {"no residual"}},
    {"YOverOut", SPOIL(add_norm(a, s), a.norm.y = a.out), {"norm.y overlaps out"}},
    {"YOverTheWeights",
     SPOIL(add_norm(a, s), a.norm.y = s.weights.data(), a.topk_weights = s.weights.data()),
     {"norm.y overlaps topk_weights"}},
    {"YOverGamma", SPOIL(add_norm(a, s), a.norm.gamma = a.norm.y), {"norm.y overlaps norm.gamma"}},
    {"RstdOverTheResidual",
     SPOIL(add_norm(a, s), a.norm.rstd = reinterpret_cast<float*>(s.memory.data())),
     {"norm.rstd overlaps norm.residual"}},
    {"OutOverTheTokens",
     SPOIL(a.out = static_cast<std::byte*>(const_cast<void*>(a.dispatched->tokens.data)) + 2),
     {"out overlaps dispatched->tokens without being the same"}},
    {"OutOverTheConstants",
     SPOIL(a.out = const_cast<void*>(a.constants.v)),
     {"out overlaps constants.v"}},
    {"OutOverTheSharedOutput",
     SPOIL(a.out = s.memory.data(); a.shared_output = s.memory.data() + 64),
     {"overlaps shared_output"}},
    {"NanWeightOfACopyExpert",
     SPOIL(s.weights.assign(kTokens* kTopK, 1.0F); s.weights[3 * kTopK] = kNotANumber;
           a.topk_weights = s.weights.data()),
     {"token 3", "k 0", "NaN"}},
    {"UnknownPartials", SPOIL(a.partials = static_cast<Partials>(7)), {"partials is 7", "0 or 1"}},
};

class BadFeatureCombines : public testing::TestWithParam<BadCombine> {};

TEST_P(BadFeatureCombines, AreRefusedAndTheGroupWorksAfter) {
  try_bad_combine(Mode::kThreads, special_rounds(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, BadFeatureCombines, testing::ValuesIn(kBadFeatureCombines),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BadFeatures, PartialsOfRowsThatAreTheCallers) {
  ExchangeConfig config = small_config();
  config.layout = Layout::kRankMajor;
  try_bad_combine(
      Mode::kThreads, two_rounds(config),
      {"Partials", SPOIL(a.partials = Partials::kPerRank), {"rank_major", "expert layout"}});
}

// Without a handle the counts come with the outputs: all ranks find rows that do not fit them.
TEST(BadFeatures, OutputsThatDoNotFitTheIds) {
  const Scenario scenario = two_rounds();
  run_ranks(Mode::kThreads, kRanks, [&](Group group) {
    Seat seat(group, scenario);
    DispatchCall dispatched = seat.dispatch_call(0);
    Received received;
    require_ok(seat.exchange().dispatch(dispatched.args(), received), "dispatch");
    CombineCall call = seat.combine_call(0, received.handle);
    call.args().handle = Handle{};
    call.args().dispatched = &dispatched.args();
    std::vector<std::byte> rows(1 << 16);
    if (seat.rank() == kOffender)
      call.args().expert_rows = {rows.data(), received.num_rows + 1, 32, DataType::kBf16, 0};
    const Status status = seat.exchange().combine(call.args());
    require_status(status, Code::kInvalidArgument, {"rank 1 gave", "place"}, "combine");
    seat.play(1);
  });
}

}  // namespace
}  // namespace ferry::test
