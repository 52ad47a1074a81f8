// Invalid configurations: each is an error that names the value and the limit, and the group stays
// usable.
#include <gtest/gtest.h>

#include <limits>

#include "bad_calls.h"

namespace ferry::test {
namespace {

#define SPOIL_CONFIG(...) [](ExchangeConfig& c) { __VA_ARGS__; }
struct BadConfig {
  const char* name;
  std::function<void(ExchangeConfig&)> spoil;
  std::vector<std::string> parts;
};
void PrintTo(const BadConfig& bad, std::ostream* stream) { *stream << bad.name; }

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

const std::vector<BadConfig> kBadConfigs = {
    {"ZeroExperts", SPOIL_CONFIG(c.num_experts = 0), {"num_experts", "0"}},
    {"NegativeExperts", SPOIL_CONFIG(c.num_experts = -4), {"num_experts", "-4"}},
    {"ZeroHidden", SPOIL_CONFIG(c.hidden = 0), {"hidden", "0"}},
    {"AbsurdHidden", SPOIL_CONFIG(c.hidden = kMost), {"hidden", "9223372036854775807"}},
    {"ZeroTopK", SPOIL_CONFIG(c.top_k = 0), {"top_k", "0", "32"}},
    {"TopKPastTheLimit", SPOIL_CONFIG(c.top_k = 33), {"top_k", "33", "32"}},
    {"NegativeTokens", SPOIL_CONFIG(c.max_tokens = -1), {"max_tokens", "-1"}},
    {"AbsurdTokens", SPOIL_CONFIG(c.max_tokens = kMost), {"max_tokens", "9223372036854775807"}},
    {"TokensTimesHiddenOverflow",
     SPOIL_CONFIG(c.max_tokens = std::int64_t{1} << 31, c.hidden = std::int64_t{1} << 31,
                  c.top_k = 32),
     {"2147483648"}},
    {"UnknownType", SPOIL_CONFIG(c.dtype = static_cast<DataType>(50)), {"dtype", "50"}},
    {"UnknownLayout", SPOIL_CONFIG(c.layout = static_cast<Layout>(9)), {"layout", "9"}},
    {"ZeroAlignment", SPOIL_CONFIG(c.expert_alignment = 0), {"expert_alignment", "0"}},
    {"ZeroDepth", SPOIL_CONFIG(c.depth = 0), {"depth", "0", "16"}},
    {"DepthPastTheLimit", SPOIL_CONFIG(c.depth = 17), {"depth", "17", "16"}},
    {"ZeroWorkers", SPOIL_CONFIG(c.workers = 0), {"workers", "0"}},
    {"PlacementOfOtherLength", SPOIL_CONFIG(c.expert_rank = {0, 1}), {"2", "6"}},
    {"PlacementOnUnknownRank",
     SPOIL_CONFIG(c.expert_rank = {0, 1, 1, 3, 0, 1}),
     {"expert_rank", "3"}},
    {"PlacementOnNegativeRank",
     SPOIL_CONFIG(c.expert_rank = {0, 1, 1, -1, 0, 1}),
     {"expert_rank", "-1"}},
    {"TokenRankOutside", SPOIL_CONFIG(c.token_ranks = {0, 3}), {"token_ranks[1] is 3", "[0, 3)"}},
    {"TokenRankTwice", SPOIL_CONFIG(c.token_ranks = {1, 1}), {"token_ranks[1] is 1", "distinct"}},
    {"ExpertRankNegative",
     SPOIL_CONFIG(c.expert_ranks = {-1}),
     {"expert_ranks[0] is -1", "[0, 3)"}},
    {"ExpertsPlacedElsewhere",
     SPOIL_CONFIG(c.expert_ranks = {1, 2}, c.expert_rank = {1, 2, 0, 1, 2, 1}),
     {"expert_rank[2] is 0", "expert_ranks [1, 2]"}},
    {"SharedExpertsElsewhere",
     SPOIL_CONFIG(c.expert_ranks = {1, 2}, c.shared = {.num_experts = 1, .num_ranks = 1}),
     {"shared.num_ranks is 1", "rank 0", "expert_ranks [1, 2]"}},
    {"OnlySharedExpertRanks",
     SPOIL_CONFIG(c.expert_ranks = {0}, c.shared = {.num_experts = 1, .num_ranks = 1}),
     {"1 of 1 ranks", "6 experts"}},
    {"NegativeCapacity", SPOIL_CONFIG(c.row_capacity = -5), {"row_capacity", "-5"}},
    {"CapacityOfAnotherLayout", SPOIL_CONFIG(c.expert_capacity = 4), {"expert_capacity", "4"}},
    {"WireOfBytes",
     SPOIL_CONFIG(c.dtype = DataType::kBytes, c.wire = Wire::kInt8),
     {"int8", "bytes"}},
    {"UnknownWire", SPOIL_CONFIG(c.wire = static_cast<Wire>(9)), {"wire is 9", "5"}},
    {"UnknownCombineWire",
     SPOIL_CONFIG(c.combine_wire = static_cast<CombineWire>(9)),
     {"combine_wire is 9"}},
    {"TwoKindsOfScales",
     SPOIL_CONFIG(c.wire = Wire::kFp8, c.scale_bytes = 8),
     {"scale_bytes is 8", "fp8"}},
    {"NegativeScales", SPOIL_CONFIG(c.scale_bytes = -4), {"-4", "0"}},
    {"OddColumns",
     SPOIL_CONFIG(c.scale_bytes = 6, c.scale_order = ScaleOrder::kColumnMajor),
     {"6", "4 bytes"}},
    {"TooManyShared",
     SPOIL_CONFIG(c.shared = {.num_experts = 5, .num_ranks = 5}),
     {"shared.num_experts", "5", "4"}},
    {"SharedWithoutRanks",
     SPOIL_CONFIG(c.shared = {.num_experts = 1}),
     {"shared.num_ranks is 0", "1"}},
    {"SharedRanksNoMultiple",
     SPOIL_CONFIG(c.shared = {.num_experts = 2, .num_ranks = 1}),
     {"shared.num_ranks is 1", "2"}},
    {"OnlySharedRanks",
     SPOIL_CONFIG(c.shared = {.num_experts = 1, .num_ranks = 3}),
     {"3 of 3 ranks", "6 experts"}},
    {"TwoSharedByToken",
     SPOIL_CONFIG(c.shared = {.num_experts = 2, .num_ranks = 2, .rule = SharedRule::kByToken}),
     {"2", "takes 1"}},
    {"NegativeSpecial", SPOIL_CONFIG(c.special.copy = -1), {"special.copy", "-1"}},
    {"ReplicaOfNothing",
     SPOIL_CONFIG(c.replicas.instances = {{0, 1}, {}}),
     {"instances[1]", "empty"}},
    {"ReplicaOutside", SPOIL_CONFIG(c.replicas.instances = {{0, 6}}), {"expert 6", "[0, 6)"}},
    {"ReplicaTwice",
     SPOIL_CONFIG(c.replicas.instances = {{0, 1}, {1}}),
     {"instances[1]", "expert 1", "once"}},
    {"GroupsThatDoNotDivide", SPOIL_CONFIG(c.tp_size = 2), {"3 ranks", "tp_size 2"}},
    {"GroupsTooLarge", SPOIL_CONFIG(c.tp_size = 9), {"tp_size is 9", "8"}},
    {"TooManyEntries",
     SPOIL_CONFIG(c.max_tokens = std::int64_t{1} << 31, c.row_capacity = 8),
     {"max_tokens 2147483648", "2 entries"}},
};

class BadConfigs : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigs, ThrowWithTheValueAndTheLimit) {
  const BadConfig& bad = GetParam();
  const Scenario scenario = plain_scenario(kRanks, small_config(), 1, 92);
  ExchangeConfig config = small_config();
  bad.spoil(config);
  const auto body = [&](Group group) {
    require_status(error_of([&] { Exchange exchange(group, config); }), Code::kInvalidArgument,
                   bad.parts, "making an exchange");
    require_status(error_of([&] { (void)window_bytes(config, kRanks); }), Code::kInvalidArgument,
                   bad.parts, "window_bytes");
    Seat(group, scenario).play(0);
  };
  run_ranks(Mode::kThreads, kRanks, body, bad.name);
}

INSTANTIATE_TEST_SUITE_P(All, BadConfigs, testing::ValuesIn(kBadConfigs),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ferry::test
