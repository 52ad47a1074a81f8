// Cases of whole operations: the conformance suite's scenarios, and the vector that a real CANN run
// printed. Part of oracle_vectors.
#include <algorithm>
#include <cstring>
#include <limits>

#include "exchange/cann_golden.h"
#include "exchange/reference.h"
#include "exchange/scenario.h"
#include "kernels/kernels.h"
#include "numpy/oracle_vectors.h"

namespace ferry::test {
namespace {

using internal::RankInput;
using internal::RankOutput;
using internal::RankReceived;

constexpr int kMaxRanks = 8;
constexpr int kScenariosOfAShape = 40;
// Rows of up to two groups of channels; small, for padded layouts multiply everything.
const ScenarioLimits kLimits{
    .max_rounds = 2, .max_tokens = 12, .max_hidden = 140, .wide_rows = false};

Json settings_of(const ExchangeConfig& config, const std::vector<RankInput>& inputs) {
  const auto [shared_experts, shared_ranks, shared_rule] = config.shared;
  std::vector<std::vector<int>> groups;  // of each rank, from the outside in; the last is its node
  for (const RankInput& input : inputs) {
    groups.push_back(input.outer);
    groups.back().push_back(input.node);
  }
  constexpr const char* kChoices[] = {"by_rank", "by_token", "by_table"};
  return {{"num_ranks", inputs.size()},
          {"active_ranks", inputs[0].active_ranks},
          {"max_tokens", config.max_tokens},
          {"hidden", config.hidden},
          {"num_experts", config.num_experts},
          {"top_k", config.top_k},
          {"type", data_type_name(config.dtype)},
          {"layout", layout_name(config.layout)},
          {"expert_alignment", config.expert_alignment},
          {"expert_capacity", config.expert_capacity},
          {"expert_rank", config.expert_rank},
          {"wire", wire_name(config.wire)},
          {"combine_wire", wire_name(config.combine_wire)},
          {"column_major_scales", config.scale_order == ScaleOrder::kColumnMajor},
          {"scale_bytes", config.scale_bytes},
          {"shared_experts", shared_experts},
          {"shared_ranks", shared_ranks},
          {"shared_rule", shared_rule == SharedRule::kByRank ? "by_rank" : "by_token"},
          {"zero_experts", config.special.zero},
          {"copy_experts", config.special.copy},
          {"constant_experts", config.special.constant},
          {"replicas", config.replicas.instances},
          {"replica_choice", kChoices[static_cast<int>(config.replicas.choice)]},
          {"tp_size", config.tp_size},
          {"groups", groups},
          {"algorithm", name_of(config.algorithm)},
          {"node_sums", name_of(config.node_sums)}};
}

std::int64_t size_of(const auto& numbers) { return static_cast<std::int64_t>(numbers.size()); }

// Arrays are named "<name>.<rank>"; one that was not given or has no numbers is left out.
class RankFile {
 public:
  RankFile(VectorFile& file, std::size_t rank) : file_(file), suffix_("." + std::to_string(rank)) {}

  template <typename T>
  void add(const std::string& name, const std::vector<T>& numbers) {
    if (!numbers.empty()) file_.add(name + suffix_, numbers, {size_of(numbers)});
  }
  template <typename T>
  void add(const std::string& name, const std::vector<T>& numbers, std::int64_t columns) {
    const std::int64_t rows = size_of(numbers) / columns;
    if (rows != 0) file_.add(name + suffix_, numbers, {rows, columns});
  }
  void add(const std::string& name, const std::vector<std::byte>& elements, DataType type,
           std::int64_t hidden) {
    if (elements.empty()) return;
    const std::int64_t rows = size_of(elements) / static_cast<std::int64_t>(element_bytes(type));
    file_.add(name + suffix_, elements, type, {rows / hidden, hidden});
  }

 private:
  VectorFile& file_;
  std::string suffix_;
};

void add_inputs(VectorFile& file, const ExchangeConfig& config,
                const std::vector<RankInput>& inputs) {
  std::vector<std::int64_t> num_tokens;
  for (const RankInput& input : inputs) num_tokens.push_back(input.num_tokens);
  file.add("num_tokens", num_tokens, {size_of(num_tokens)});
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    RankFile of_rank(file, rank);
    const RankInput& input = inputs[rank];
    of_rank.add("tokens", input.tokens, config.dtype, config.hidden);
    of_rank.add("topk_ids", input.topk_ids, config.top_k);
    of_rank.add("topk_weights", input.topk_weights, config.top_k);
    of_rank.add("token_mask", input.token_mask);
    of_rank.add("topk_mask", input.topk_mask, config.top_k);
    of_rank.add("factors", input.factors, std::max<std::int64_t>(input.factor_channels, 1));
    of_rank.add("token_scales", input.token_scales, DataType::kBytes, config.scale_bytes);
    of_rank.add("replica_table", input.replica_table);
  }
}

// The shape of RankReceived::weights.
void add_weights(RankFile& of_rank, const std::string& name, const std::vector<float>& weights,
                 const ExchangeConfig& config) {
  if (config.layout == Layout::kRankMajor) {
    of_rank.add(name, weights, config.top_k);
  } else {
    of_rank.add(name, weights);
  }
}

void add_received(VectorFile& file, const ExchangeConfig& config,
                  const std::vector<RankReceived>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    RankFile of_rank(file, rank);
    const RankReceived& received = all[rank];
    const internal::ReferenceScales& scales = received.scales;
    of_rank.add("received.rows", received.rows, received.dtype, config.hidden);
    of_rank.add("received.scales", scales.bytes, DataType::kBytes, 1);
    of_rank.add("received.scale_shape",
                std::vector{scales.columns, scales.element_bytes, scales.row_stride,
                            scales.column_stride, scales.section_stride});
    of_rank.add("received.row_valid", received.row_valid);
    of_rank.add("received.sources", received.sources, 3);
    add_weights(of_rank, "received.weights", received.weights, config);
    of_rank.add("received.topk_ids", received.topk_ids, config.top_k);
    of_rank.add("received.tokens_per_expert", received.tokens_per_expert);
    of_rank.add("received.aligned_tokens_per_expert", received.aligned_tokens_per_expert);
    of_rank.add("received.expert_offsets", received.expert_offsets);
    of_rank.add("received.running_counts", received.running_counts);
    of_rank.add("received.running_rows_per_rank", received.running_rows_per_rank);
  }
}

void write_dispatch(VectorFile& file, const ExchangeConfig& config, const Round& round) {
  file.begin_case(std::string("dispatch ") + layout_name(config.layout),
                  settings_of(config, round.inputs));
  std::vector<RankInput> sent = round.inputs;
  for (RankInput& input : sent) {
    if (!round.weights) input.topk_weights.clear();
  }
  add_inputs(file, config, sent);
  add_received(file, config, round.expected);
}

// NaN in rows that must not be read, and in a few that are; infinities as well.
void spoil_rows(const Round& round, CombineCase& combine, Random& random) {
  const std::size_t bytes = element_bytes(combine.row_type);
  for (std::size_t rank = 0; rank < combine.outputs.size(); ++rank) {
    std::vector<std::byte>& rows = combine.outputs[rank].expert_rows;
    for (std::int64_t i = 0; i < round.expected[rank].num_rows; ++i) {
      std::byte* const row = rows.data() + static_cast<std::size_t>(i * combine.hidden) * bytes;
      std::byte* const element = row + random.below(combine.hidden) * bytes;
      if (round.expected[rank].row_valid[i] == 0) {
        std::memset(row, 0xff, static_cast<std::size_t>(combine.hidden) * bytes);
      } else if (random.one_in(20)) {
        const float infinity = std::numeric_limits<float>::infinity();
        internal::from_float(random.one_in(2) ? infinity : -infinity, element, combine.row_type);
      } else if (random.one_in(20)) {
        internal::from_float(std::numeric_limits<float>::quiet_NaN(), element, combine.row_type);
      }
    }
  }
}

void write_combine(VectorFile& file, const ExchangeConfig& config, const Round& round,
                   const CombineCase& combine) {
  Json settings = settings_of(config, round.inputs);
  settings["row_type"] = data_type_name(combine.row_type);
  settings["row_hidden"] = combine.hidden;
  settings["weights_home"] = false;
  for (const RankOutput& output : combine.outputs) {
    if (!output.row_weights.empty()) settings["weights_home"] = true;
    settings["weighted"].push_back(output.weighted);
    settings["out_type"].push_back(data_type_name(output.out_type));
    settings["epsilon"].push_back(output.epsilon);
    settings["per_rank_partials"].push_back(output.partials == Partials::kPerRank);
  }
  file.begin_case(std::string("combine ") + layout_name(config.layout), settings);
  add_inputs(file, config, round.inputs);
  for (std::size_t rank = 0; rank < combine.outputs.size(); ++rank) {
    RankFile of_rank(file, rank);
    const RankOutput& output = combine.outputs[rank];
    of_rank.add("expert_rows", output.expert_rows, combine.row_type, combine.hidden);
    add_weights(of_rank, "row_weights", output.row_weights, config);
    of_rank.add("alpha1", output.alpha1, config.dtype, config.hidden);
    of_rank.add("alpha2", output.alpha2, config.dtype, config.hidden);
    of_rank.add("v", output.v, config.dtype, config.hidden);
    of_rank.add("shared_output", output.shared_output, output.out_type, combine.hidden);
    of_rank.add("residual", output.residual, output.out_type, combine.hidden);
    of_rank.add("gamma", output.gamma, output.out_type, combine.hidden);
    of_rank.add("bias_0", output.bias[0], output.out_type, combine.hidden);
    of_rank.add("bias_1", output.bias[1], output.out_type, combine.hidden);
    of_rank.add("out", combine.expected[rank].out, output.out_type, combine.hidden);
    of_rank.add("y", combine.expected[rank].y, output.out_type, combine.hidden);
    of_rank.add("rstd", combine.expected[rank].rstd);
    of_rank.add("out_topk_weights", combine.expected[rank].out_topk_weights, config.top_k);
  }
}

void write_scenario(VectorFile& file, Scenario scenario) {
  Random random(scenario.seed, 77);
  for (Round& round : scenario.rounds) {
    write_dispatch(file, scenario.config, round);
    for (CombineCase& combine : round.combines) {
      spoil_rows(round, combine, random);
      combine.expected = internal::reference_combine(scenario.config, round.inputs, combine.outputs,
                                                     combine.hidden, combine.row_type);
      write_combine(file, scenario.config, round, combine);
    }
  }
}

}  // namespace

void write_exchanges(VectorFile& file, std::uint64_t seed) {
  std::vector<Nodes> shapes = every_shape();
  for (int num_ranks = 1; num_ranks <= kMaxRanks; ++num_ranks)
    shapes.push_back(test_nodes(num_ranks));
  for (const Nodes& nodes : shapes) {
    for (std::uint64_t i = 0; i < kScenariosOfAShape; ++i)
      write_scenario(file, make_scenario(nodes, seed * kScenariosOfAShape + i, kLimits));
  }
}

void write_cann_golden(VectorFile& file) {
  for (const int top_k : cann_golden::kTopK) {
    const ExchangeConfig config = cann_golden::config(top_k);
    Round round;
    round.inputs = cann_golden::inputs(top_k);
    expect_dispatch(config, round);
    write_dispatch(file, config, round);
    file.begin_case("CANN golden", settings_of(config, round.inputs));
    add_inputs(file, config, round.inputs);
    add_received(file, config, round.expected);
    file.add("cann.expandIdx", cann_golden::kExpandIdx, {size_of(cann_golden::kExpandIdx)});
    file.add("cann.sendCounts", cann_golden::kSendCounts, {size_of(cann_golden::kSendCounts)});
    file.add("cann.expertTokenNums", cann_golden::kExpertTokenNums,
             {size_of(cann_golden::kExpertTokenNums)});
  }
}

}  // namespace ferry::test
