// Configurations that cannot be: each is an error that names the value and the limit, and the group
// works after.
#include <gtest/gtest.h>

#include <limits>

#include "bad_calls.h"

namespace ferry::test {
namespace {

struct BadConfig {
  const char* name;
  std::function<void(ExchangeConfig&)> spoil;
  std::vector<std::string> parts;
};
void PrintTo(const BadConfig& bad, std::ostream* stream) { *stream << bad.name; }

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

const std::vector<BadConfig> kBadConfigs = {
    {"ZeroExperts", [](ExchangeConfig& c) { c.num_experts = 0; }, {"num_experts", "0"}},
    {"NegativeExperts", [](ExchangeConfig& c) { c.num_experts = -4; }, {"num_experts", "-4"}},
    {"ZeroHidden", [](ExchangeConfig& c) { c.hidden = 0; }, {"hidden", "0"}},
    {"AbsurdHidden",
     [](ExchangeConfig& c) { c.hidden = kMost; },
     {"hidden", "9223372036854775807"}},
    {"ZeroTopK", [](ExchangeConfig& c) { c.top_k = 0; }, {"top_k", "0", "32"}},
    {"TopKPastTheLimit", [](ExchangeConfig& c) { c.top_k = 33; }, {"top_k", "33", "32"}},
    {"NegativeTokens", [](ExchangeConfig& c) { c.max_tokens = -1; }, {"max_tokens", "-1"}},
    {"AbsurdTokens",
     [](ExchangeConfig& c) { c.max_tokens = kMost; },
     {"max_tokens", "9223372036854775807"}},
    {"TokensTimesHiddenOverflow",
     [](ExchangeConfig& c) {
       c.max_tokens = std::int64_t{1} << 31, c.hidden = std::int64_t{1} << 31, c.top_k = 32;
     },
     {"2147483648"}},
    {"UnknownType",
     [](ExchangeConfig& c) { c.dtype = static_cast<DataType>(50); },
     {"dtype", "50"}},
    {"UnknownLayout",
     [](ExchangeConfig& c) { c.layout = static_cast<Layout>(9); },
     {"layout", "9"}},
    {"ZeroAlignment", [](ExchangeConfig& c) { c.expert_alignment = 0; }, {"expert_alignment", "0"}},
    {"ZeroDepth", [](ExchangeConfig& c) { c.depth = 0; }, {"depth", "0", "16"}},
    {"DepthPastTheLimit", [](ExchangeConfig& c) { c.depth = 17; }, {"depth", "17", "16"}},
    {"ZeroWorkers", [](ExchangeConfig& c) { c.workers = 0; }, {"workers", "0"}},
    {"PlacementOfOtherLength",
     [](ExchangeConfig& c) {
       c.expert_rank = {0, 1};
     },
     {"2", "6"}},
    {"PlacementOnUnknownRank",
     [](ExchangeConfig& c) { c.expert_rank = {0, 1, 1, 3, 0, 1}; },
     {"expert_rank", "3"}},
    {"PlacementOnNegativeRank",
     [](ExchangeConfig& c) { c.expert_rank = {0, 1, 1, -1, 0, 1}; },
     {"expert_rank", "-1"}},
    {"NegativeCapacity", [](ExchangeConfig& c) { c.row_capacity = -5; }, {"row_capacity", "-5"}},
    {"CapacityOfAnotherLayout",
     [](ExchangeConfig& c) { c.expert_capacity = 4; },
     {"expert_capacity", "4"}},
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
