// Bad calls and configurations of wires, scales, special and replicated experts, active ranks and
// the fused norm: each names the value and the rule, and the next call works.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bad_calls.h"

namespace ferry::test {
namespace {

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

// ---- configurations

struct BadFeatureConfig {
  const char* name;
  std::function<void(ExchangeConfig&)> spoil;
  std::vector<std::string> parts;
};
void PrintTo(const BadFeatureConfig& bad, std::ostream* stream) { *stream << bad.name; }

const std::vector<BadFeatureConfig> kBadFeatureConfigs = {
    {"WireOfBytes",
     [](ExchangeConfig& c) { c.dtype = DataType::kBytes, c.wire = Wire::kInt8; },
     {"int8", "bytes"}},
    {"UnknownWire", [](ExchangeConfig& c) { c.wire = static_cast<Wire>(9); }, {"wire is 9", "5"}},
    {"UnknownCombineWire",
     [](ExchangeConfig& c) { c.combine_wire = static_cast<CombineWire>(9); },
     {"combine_wire is 9"}},
    {"TwoKindsOfScales",
     [](ExchangeConfig& c) { c.wire = Wire::kFp8, c.scale_bytes = 8; },
     {"scale_bytes is 8", "fp8"}},
    {"NegativeScales", [](ExchangeConfig& c) { c.scale_bytes = -4; }, {"-4", "0"}},
    {"OddColumns",
     [](ExchangeConfig& c) { c.scale_bytes = 6, c.scale_order = ScaleOrder::kColumnMajor; },
     {"6", "4 bytes"}},
    {"TooManyShared",
     [](ExchangeConfig& c) { c.shared = {.num_experts = 5, .num_ranks = 5}; },
     {"shared.num_experts", "5", "4"}},
    {"SharedWithoutRanks",
     [](ExchangeConfig& c) { c.shared = {.num_experts = 1}; },
     {"shared.num_ranks is 0", "1"}},
    {"SharedRanksNoMultiple",
     [](ExchangeConfig& c) { c.shared = {.num_experts = 2, .num_ranks = 1}; },
     {"shared.num_ranks is 1", "2"}},
    {"OnlySharedRanks",
     [](ExchangeConfig& c) { c.shared = {.num_experts = 1, .num_ranks = 3}; },
     {"3 of 3 ranks", "6 experts"}},
    {"TwoSharedByToken",
     [](ExchangeConfig& c) {
       c.shared = {.num_experts = 2, .num_ranks = 2, .rule = SharedRule::kByToken};
     },
     {"2", "takes 1"}},
    {"NegativeSpecial", [](ExchangeConfig& c) { c.special.copy = -1; }, {"special.copy", "-1"}},
    {"ReplicaOfNothing",
     [](ExchangeConfig& c) {
       c.replicas.instances = {{0, 1}, {}};
     },
     {"instances[1]", "empty"}},
    {"ReplicaOutside",
     [](ExchangeConfig& c) {
       c.replicas.instances = {{0, 6}};
     },
     {"expert 6", "[0, 6)"}},
    {"ReplicaTwice",
     [](ExchangeConfig& c) {
       c.replicas.instances = {{0, 1}, {1}};
     },
     {"instances[1]", "expert 1", "once"}},
    {"GroupsThatDoNotDivide", [](ExchangeConfig& c) { c.tp_size = 2; }, {"3 ranks", "tp_size 2"}},
    {"GroupsTooLarge", [](ExchangeConfig& c) { c.tp_size = 9; }, {"tp_size is 9", "8"}},
    {"TooManyEntries",
     [](ExchangeConfig& c) { c.max_tokens = std::int64_t{1} << 31, c.row_capacity = 8; },
     {"max_tokens 2147483648", "2 entries"}},
};

class BadFeatureConfigs : public testing::TestWithParam<BadFeatureConfig> {};

TEST_P(BadFeatureConfigs, AreRefusedByName) {
  ExchangeConfig config = small_config();
  GetParam().spoil(config);
  try {
    (void)window_bytes(config, kRanks);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    for (const std::string& part : GetParam().parts)
      EXPECT_TRUE(contains(error.what(), part)) << part << " in " << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(All, BadFeatureConfigs, testing::ValuesIn(kBadFeatureConfigs),
                         [](const auto& info) { return std::string(info.param.name); });

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
    {"IdPastTheSpecialOnes",
     [](DispatchArgs&, Scratch& s) { s.ids[1] = 9; },
     {"9", "token 0", "k 1", "[-1, 9)"}},
    {"ScaleRowsForOtherExperts",
     [](DispatchArgs& a, Scratch& s) { point_scales(a, s, 5, 1); },
     {"[5, 1]", "1 or 6"}},
    {"ScalesOfOtherHidden",
     [](DispatchArgs& a, Scratch& s) { point_scales(a, s, 1, 31); },
     {"[1, 31]", "32"}},
    {"NanScale",
     [](DispatchArgs& a, Scratch& s) {
       point_scales(a, s, 6, 32);
       s.weights[2 * 32 + 7] = kNotANumber;
     },
     {"row 2", "channel 7", "nan"}},
    {"ScalesOfTheirOwn",
     [](DispatchArgs& a, Scratch& s) { a.token_scales = s.memory.data(); },
     {"token_scales", "given", "scale_bytes 0"}},
    {"ActiveRankOutside",
     [](DispatchArgs& a, Scratch&) { a.active_ranks = kOutside; },
     {"active_ranks[1] is 3", "[0, 3)"}},
    {"ActiveRankTwice",
     [](DispatchArgs& a, Scratch&) { a.active_ranks = kTwice; },
     {"active_ranks[1] is 1", "distinct"}},
};

class BadFeatureDispatches : public testing::TestWithParam<BadDispatch> {};

TEST_P(BadFeatureDispatches, AreRefusedAndTheGroupWorksAfter) {
  try_bad_dispatch(Mode::kThreads, two_rounds(int8_config()), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, BadFeatureDispatches, testing::ValuesIn(kBadFeatureDispatches),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BadFeatures, ScalesWithoutAnInt8Wire) {
  try_bad_dispatch(
      Mode::kThreads, two_rounds(),
      {"Scales", [](DispatchArgs& a, Scratch& s) { point_scales(a, s, 1, 1); }, {"int8", "none"}});
}

TEST(BadFeatures, ScalesByExpertInRowsOfSeveral) {
  ExchangeConfig config = int8_config();
  config.layout = Layout::kRankMajor;
  config.special = {};
  try_bad_dispatch(Mode::kThreads, two_rounds(config),
                   {"Scales",
                    [](DispatchArgs& a, Scratch& s) { point_scales(a, s, 6, 1); },
                    {"6 rows", "rank_major", "need 1"}});
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
  try_bad_dispatch(
      Mode::kThreads, scenario,
      {"NoTable", [](DispatchArgs& a, Scratch&) { a.replica_table = nullptr; }, {"null"}});
}

// Every rank is told who named other ranks, both lists, and the next call works.
TEST(BadFeatures, RanksThatDoNotAgreeWhoTakesPart) {
  const Scenario scenario = two_rounds();
  run_ranks(Mode::kThreads, kRanks, [&](Group group) {
    Seat seat(group, scenario);
    Random random(3);
    DispatchCall call(scenario, scenario.rounds[0], seat.rank(), random);
    const int others[] = {2, 0, 1};
    if (seat.rank() == kOffender) call.args().active_ranks = others;
    Received received;
    const Status status = seat.exchange().dispatch(call.args(), received);
    require_status(status, Code::kMismatch, {"rank 1", "[2, 0, 1]"}, "dispatch");
    require(status.group_usable() && status.culprit() == kOffender, "usable, and the culprit");
    Received good = seat.dispatch(1);
    seat.combine(1, good.handle, &good);
  });
}

// A handle's rows are numbered by the ranks it was made with.
TEST(BadFeatures, CachedHandleOfOtherActiveRanks) {
  const Scenario scenario = two_rounds();
  run_ranks(Mode::kThreads, kRanks, [&](Group group) {
    Seat seat(group, scenario);
    Random random(3);
    const Handle handle = seat.dispatch(0).handle;
    DispatchCall call(scenario, scenario.rounds[0], seat.rank(), random);
    DispatchArgs args = {.tokens = call.args().tokens, .cached = handle};
    const int others[] = {2, 0, 1};
    if (seat.rank() == kOffender) args.active_ranks = others;
    Received received;
    const Status status = seat.exchange().dispatch(args, received);
    require(status.group_usable() && status.culprit() == kOffender, status.message());
    require_status(status, seat.rank() == kOffender ? Code::kInvalidArgument : Code::kPeerRejected,
                   {"[2, 0, 1]", "cached handle"}, "dispatch");
    Received good = seat.dispatch(1);
    seat.combine(1, good.handle, &good);
  });
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
    {"CopiesOfNothing",
     [](CombineArgs& a, Scratch&) { a.dispatched = nullptr; },
     {"copy", "dispatched->tokens", "[8, 32]"}},
    {"NoConstants",
     [](CombineArgs& a, Scratch&) { a.constants = {}; },
     {"constant", "alpha1", "alpha2"}},
    {"NormWithoutGamma",
     [](CombineArgs& a, Scratch& s) { add_norm(a, s), a.norm.gamma = nullptr; },
     {"gamma"}},
    {"NormWithoutY",
     [](CombineArgs& a, Scratch& s) { add_norm(a, s), a.norm.y = nullptr; },
     {"gamma and y"}},
    {"NegativeEpsilon",
     [](CombineArgs& a, Scratch& s) { add_norm(a, s), a.norm.epsilon = -1.0F; },
     {"epsilon", "-1"}},
    {"NanEpsilon",
     [](CombineArgs& a, Scratch& s) { add_norm(a, s), a.norm.epsilon = kNotANumber; },
     {"epsilon", "nan"}},
    {"NormWithoutResidual",
     [](CombineArgs& a, Scratch& s) { add_norm(a, s), a.norm.residual = nullptr; },
     {"no residual"}},
    {"YOverOut",
     [](CombineArgs& a, Scratch& s) { add_norm(a, s), a.norm.y = a.out; },
     {"norm.y", "out"}},
    {"OutOverTheSharedOutput",
     [](CombineArgs& a, Scratch& s) {
       a.out = s.memory.data();
       a.shared_output = s.memory.data() + 64;
     },
     {"overlaps shared_output"}},
    {"UnknownPartials",
     [](CombineArgs& a, Scratch&) { a.partials = static_cast<Partials>(7); },
     {"partials is 7", "0 or 1"}},
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
  try_bad_combine(Mode::kThreads, two_rounds(config),
                  {"Partials",
                   [](CombineArgs& a, Scratch&) { a.partials = Partials::kPerRank; },
                   {"rank_major", "expert layout"}});
}

// Without a handle the counts come with the outputs: all ranks find rows that do not fit them.
TEST(BadFeatures, OutputsThatDoNotFitTheIds) {
  const Scenario scenario = two_rounds();
  run_ranks(Mode::kThreads, kRanks, [&](Group group) {
    Seat seat(group, scenario);
    Random random(3);
    DispatchCall dispatched(scenario, scenario.rounds[0], seat.rank(), random);
    Received received;
    require_ok(seat.exchange().dispatch(dispatched.args(), received), "dispatch");
    CombineCall call(seat.exchange(), scenario, scenario.rounds[0], scenario.rounds[0].combines[0],
                     seat.rank(), received.handle, nullptr, random);
    call.args().handle = Handle{};
    call.args().dispatched = &dispatched.args();
    std::vector<std::byte> rows(1 << 16);
    if (seat.rank() == kOffender)
      call.args().expert_rows = {rows.data(), received.num_rows + 1, 32, DataType::kBf16, 0};
    const Status status = seat.exchange().combine(call.args());
    require_status(status, Code::kInvalidArgument, {"rank 1 gave", "place"}, "combine");
    Received good = seat.dispatch(1);
    seat.combine(1, good.handle, &good);
  });
}

}  // namespace
}  // namespace ferry::test
