// Which features of the contract a scenario has.
#include "scenario.h"

namespace ferry::test {
namespace {

using Features = std::map<std::string, int>;

void note(Features& found, const std::string& feature, bool present) {
  found[feature] += present ? 1 : 0;
}

void note_config(const ExchangeConfig& config, int num_ranks, Features& found) {
  for (const Layout layout : {Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded}) {
    for (const DataType type :
         {DataType::kBf16, DataType::kFp16, DataType::kFp32, DataType::kBytes}) {
      note(found, std::string(layout_name(layout)) + " of " + data_type_name(type),
           config.layout == layout && config.dtype == type);
    }
  }
  const std::size_t row_bytes =
      static_cast<std::size_t>(config.hidden) * element_bytes(config.dtype);
  note(found, "alignment with gaps left", config.expert_alignment > 1 && !config.zero_gaps);
  note(found, "alignment with zeroed gaps", config.expert_alignment > 1 && config.zero_gaps);
  note(found, "K of 1", config.top_k == 1);
  note(found, "K of 16", config.top_k == 16);
  note(found, "K of 32", config.top_k == 32);
  note(found, "rows of odd bytes", row_bytes % 2 == 1);
  note(found, "rows of over 6000 elements", config.hidden > 6000);
  note(found, "caller's placement", !config.expert_rank.empty());
  note(found, "E not divisible by R", num_ranks == 1 || config.num_experts % num_ranks != 0);
  note(found, "fewer experts than ranks", num_ranks == 1 || config.num_experts < num_ranks);
  note(found, "fixed row capacity", config.row_capacity != 0);
  note(found, "fixed expert capacity", config.expert_capacity != 0);
  for (int i = 1; i <= 3; ++i) note(found, "depth " + std::to_string(i), config.depth == i);
  for (int i = 1; i <= 3; ++i) note(found, "workers " + std::to_string(i), config.workers == i);
}

void note_combine(const ExchangeConfig& config, const CombineCase& combine, Features& found) {
  note(found, "combine of another width", combine.hidden != config.hidden);
  note(found, "combine of another type", combine.row_type != config.dtype);
  note(found, "row weights home", combine.weights_home);
  for (const internal::RankOutput& output : combine.outputs) {
    note(found, "weighted", output.weighted);
    note(found, "unweighted", !output.weighted);
    note(found, "two biases", !output.bias[0].empty() && !output.bias[1].empty());
    note(found, "only the second bias", output.bias[0].empty() && !output.bias[1].empty());
    note(found, "out of another type than the rows", output.out_type != combine.row_type);
  }
}

void note_round(const ExchangeConfig& config, const Round& round, Features& found) {
  note(found, "cached dispatch", round.cached_from >= 0);
  note(found, "dispatch without weights", !round.weights);
  note(found, "no combine", round.combines.empty());
  note(found, "several combines", round.combines.size() > 1);
  for (const internal::RankInput& input : round.inputs) {
    note(found, "empty rank", input.num_tokens == 0);
    note(found, "1-D mask", !input.token_mask.empty());
    note(found, "2-D mask", !input.topk_mask.empty());
  }
  for (const internal::RankReceived& received : round.expected)
    note(found, "rank that receives nothing", received.num_rows == 0);
  for (const CombineCase& combine : round.combines) note_combine(config, combine, found);
}

}  // namespace

std::map<std::string, int> Scenario::features() const {
  Features found;
  note_config(config, num_ranks, found);
  for (const Round& round : rounds) note_round(config, round, found);
  return found;
}

}  // namespace ferry::test
