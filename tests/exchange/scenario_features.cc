// Describes a scenario as text, and lists the features of the contract that it has.
#include <algorithm>
#include <sstream>
#include <string>

#include "exchange/setup/setup.h"
#include "scenario.h"
#include "scenario_config.h"

namespace ferry::test {
namespace {

using Features = std::map<std::string, int>;

constexpr auto kLayouts = {Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded};
constexpr auto kWires = {Wire::kInt8, Wire::kInt8Static, Wire::kFp8, Wire::kFp8Pow2,
                         Wire::kFp8Ue8m0};
constexpr auto kCombineWires = {CombineWire::kInt8Block8, CombineWire::kInt8Block128,
                                CombineWire::kLogfmt10};

void note(Features& found, const std::string& feature, bool present) {
  found[feature] += present ? 1 : 0;
}

std::string of_layout(const std::string& feature, Layout layout) {
  return feature + ", " + layout_name(layout);
}

void note_shape(const ExchangeConfig& config, int num_ranks, Features& found) {
  for (const Layout layout : kLayouts) {
    for (const DataType type :
         {DataType::kBf16, DataType::kFp16, DataType::kFp32, DataType::kBytes}) {
      note(found, std::string(layout_name(layout)) + " of " + data_type_name(type),
           config.layout == layout && config.dtype == type);
    }
  }
  const std::size_t row_bytes =
      static_cast<std::size_t>(config.hidden) * element_bytes(config.dtype);
  for (const Layout layout : kLayouts) {
    note(found, of_layout("alignment", layout),
         config.layout == layout && config.expert_alignment > 1);
  }
  const bool gaps = config.layout == Layout::kExpertMajor && config.expert_alignment > 1;
  note(found, "gaps left", gaps && !config.zero_gaps);
  note(found, "zeroed gaps", gaps && config.zero_gaps);
  note(found, "K of 1", config.top_k == 1);
  note(found, "K of 16", config.top_k == 16);
  note(found, "K of 32", config.top_k == 32);
  note(found, "rows of odd bytes", row_bytes % 2 == 1);
  note(found, "rows of over 6000 elements", config.hidden > 6000);
  note(found, "caller's placement", !config.expert_rank.empty());
  const bool tokens = !config.token_ranks.empty(), experts = !config.expert_ranks.empty();
  note(found, "token ranks", tokens);
  note(found, "expert ranks", experts);
  for (const Layout layout : kLayouts)
    note(found, of_layout("token ranks and expert ranks", layout),
         tokens && experts && config.layout == layout);
  note(found, "expert ranks, caller's placement", experts && !config.expert_rank.empty());
  note(found, "expert ranks and shared", experts && config.shared.num_ranks > 0);
  note(found, "expert ranks and replicas", experts && !config.replicas.instances.empty());
  note(found, "token ranks and groups", tokens && config.tp_size > 1);
  note(found, "expert ranks and groups", experts && config.tp_size > 1);
  note(found, "E not divisible by R", num_ranks == 1 || config.num_experts % num_ranks != 0);
  note(found, "fewer experts than ranks", num_ranks == 1 || config.num_experts < num_ranks);
  note(found, "counts summed together",
       num_ranks > 1 && num_ranks * config.num_experts >= internal::kSharedSumsFrom);
  note(found, "fixed row capacity", config.row_capacity != 0);
  note(found, "fixed expert capacity", config.expert_capacity != 0);
  for (int i = 1; i <= 3; ++i) note(found, "depth " + std::to_string(i), config.depth == i);
  for (int i = 1; i <= 3; ++i) note(found, "workers " + std::to_string(i), config.workers == i);
}

void note_wires(const ExchangeConfig& config, Features& found) {
  const bool column_major = config.scale_order == ScaleOrder::kColumnMajor;
  for (const Layout layout : kLayouts) {
    const bool here = config.layout == layout;
    for (const Wire wire : kWires)
      note(found, of_layout(wire_name(wire), layout), here && config.wire == wire);
    for (const CombineWire wire : kCombineWires) {
      note(found, of_layout(std::string("combine ") + wire_name(wire), layout),
           here && config.combine_wire == wire);
    }
    note(found, of_layout("caller's scales", layout), here && config.scale_bytes > 0);
    note(found, of_layout("scales in columns", layout), here && column_major);
  }
  for (const Wire wire : {Wire::kFp8, Wire::kFp8Pow2, Wire::kFp8Ue8m0}) {
    const std::string name = wire_name(wire);
    const bool here = config.wire == wire;
    note(found, name + " with several scales", here && config.hidden > 128);
    note(found, name + " with scales in columns", here && column_major);
    note(found, name + " with a short group", here && config.hidden % 128 != 0);
  }
  const bool wire = config.wire != Wire::kNone;
  note(found, "wire with many scales in columns", wire && config.hidden > 1024 && column_major);
  note(found, "caller's scales of odd bytes", config.scale_bytes % 4 != 0);
  note(found, "caller's scales in columns", config.scale_bytes > 0 && column_major);
  note(found, "wires both ways", wire && config.combine_wire != CombineWire::kNone);
  note(found, "wire with gaps",
       wire && config.layout == Layout::kExpertMajor && config.expert_alignment > 1 &&
           !config.zero_gaps);
  note(found, "scales with zeroed gaps",
       wire && config.layout != Layout::kRankMajor && config.zero_gaps);
}

void note_experts(const ExchangeConfig& config, Features& found) {
  const SharedExperts& shared = config.shared;
  const bool some_shared = shared.num_ranks > 0, some_special = config.special.total() > 0,
             replicas = !config.replicas.instances.empty(), wire = config.wire != Wire::kNone,
             combine_wire = config.combine_wire != CombineWire::kNone, groups = config.tp_size > 1;
  for (const Layout layout : kLayouts) {
    const bool here = config.layout == layout;
    note(found, of_layout("shared experts", layout), here && some_shared);
    note(found, of_layout("copy experts", layout), here && config.special.copy > 0);
    note(found, of_layout("constant experts", layout), here && config.special.constant > 0);
    note(found, of_layout("replicas", layout), here && replicas);
    note(found, of_layout("groups", layout), here && groups);
  }
  note(found, "shared by rank", some_shared && shared.rule == SharedRule::kByRank);
  note(found, "shared by token, several ranks",
       some_shared && shared.rule == SharedRule::kByToken && shared.num_ranks > 1);
  note(found, "several shared experts", shared.num_experts > 1);
  note(found, "several ranks for a shared expert",
       some_shared && shared.num_ranks > shared.num_experts);
  note(found, "shared ranks with routed experts", some_shared && !config.expert_rank.empty());
  note(found, "zero experts", config.special.zero > 0);
  note(found, "replicas by rank", replicas && config.replicas.choice == ReplicaChoice::kByRank);
  note(found, "replicas by token", replicas && config.replicas.choice == ReplicaChoice::kByToken);
  note(found, "replicas by table", replicas && config.replicas.choice == ReplicaChoice::kByTable);
  note(found, "shared and special", some_shared && some_special);
  note(found, "shared and replicas", some_shared && replicas);
  note(found, "special and replicas", some_special && replicas);
  note(found, "shared and wire", some_shared && wire);
  note(found, "shared and combine wire", some_shared && combine_wire);
  note(found, "special and wire", some_special && wire);
  note(found, "replicas and wire", replicas && wire);
  note(found, "groups of more than two", config.tp_size > 2);
  note(found, "groups and shared", groups && some_shared);
  note(found, "groups and special", groups && some_special);
  note(found, "groups and replicas", groups && replicas);
  note(found, "groups and wire", groups && wire);
  note(found, "groups and combine wire", groups && combine_wire);
}

void note_input(const ExchangeConfig& config, const internal::RankInput& input, Features& found) {
  const bool masked = !input.token_mask.empty() || !input.topk_mask.empty();
  const bool some_shared = config.shared.num_ranks > 0, one = input.factor_rows == 1;
  note(found, "empty rank", input.num_tokens == 0);
  note(found, "1-D mask", !input.token_mask.empty());
  note(found, "2-D mask", !input.topk_mask.empty());
  note(found, "mask and shared", masked && some_shared);
  note(found, "mask and special", masked && config.special.total() > 0);
  note(found, "mask and fewer tokens", masked && input.num_tokens < config.max_tokens);
  for (const Wire wire : {Wire::kInt8, Wire::kInt8Static}) {
    const std::string name = wire_name(wire);
    const bool here = config.wire == wire && config.hidden > 1, many = input.factor_rows > 1,
               single = input.factor_channels == 1;
    note(found, name + " with a factor", here && one && single);
    note(found, name + " with a factor per channel", here && one && !single);
    note(found, name + " with a factor per expert", here && many && single);
    note(found, name + " with a factor per expert and channel", here && many && !single);
    note(found, name + " with a factor per expert, shared ones too", here && many && some_shared);
  }
  note(found, "int8 without factors", config.wire == Wire::kInt8 && input.factor_rows == 0);
  note(found, "a factor per expert and replicas",
       input.factor_rows > 1 && !config.replicas.instances.empty());
}

// Of a scenario on several nodes.
void note_nodes(const ExchangeConfig& config, Features& found) {
  for (const Algorithm algorithm :
       {Algorithm::kFullmesh, Algorithm::kHierarchical, Algorithm::kAllgather}) {
    const bool here = config.algorithm == algorithm;
    const std::string name = name_of(algorithm);
    for (const NodeSums sums : {NodeSums::kRowType, NodeSums::kFp32, NodeSums::kExact})
      note(found, name + ", sums " + name_of(sums), here && config.node_sums == sums);
    for (const Layout layout : kLayouts)
      note(found, of_layout(name, layout), here && config.layout == layout);
    note(found, name + " and wire", here && config.wire != Wire::kNone);
    note(found, name + " and combine wire", here && config.combine_wire != CombineWire::kNone);
    note(found, name + " and shared", here && config.shared.num_ranks > 0);
    note(found, name + " and special", here && config.special.total() > 0);
    note(found, name + " and groups", here && config.tp_size > 1);
  }
  const bool exact = config.node_sums == NodeSums::kExact;
  note(found, "exact and combine wire", exact && config.combine_wire != CombineWire::kNone);
}

void note_combine(const ExchangeConfig& config, const Round& round, const CombineCase& combine,
                  Features& found) {
  const bool from_tensors = combine.from_tensors;
  note(found, "combine of another width", combine.hidden != config.hidden);
  note(found, "combine of another type", combine.row_type != config.dtype);
  note(found, "row weights home", combine.weights_home);
  note(found, "row weights home in groups", combine.weights_home && config.tp_size > 1);
  for (const Layout layout : kLayouts)
    note(found, of_layout("from tensors", layout), from_tensors && config.layout == layout);
  note(found, "from tensors, cached", from_tensors && round.cached_from >= 0);
  note(found, "from tensors, active ranks", from_tensors && !round.inputs[0].active_ranks.empty());
  note(found, "from tensors, shared", from_tensors && config.shared.num_ranks > 0);
  note(found, "from tensors, replicas by table",
       from_tensors && !round.inputs[0].replica_table.empty());
  note(found, "from tensors, groups", from_tensors && config.tp_size > 1);
  for (const internal::RankOutput& output : combine.outputs) {
    const bool norm = !output.residual.empty(), reads_tokens = combine_reads_tokens(config);
    note(found, "weighted", output.weighted);
    note(found, "unweighted", !output.weighted);
    note(found, "two biases", !output.bias[0].empty() && !output.bias[1].empty());
    note(found, "only the second bias", output.bias[0].empty() && !output.bias[1].empty());
    note(found, "out of another type than the rows", output.out_type != combine.row_type);
    note(found, "shared output", !output.shared_output.empty());
    note(found, "unweighted copies and constants", reads_tokens && !output.weighted);
    for (const DataType type : {DataType::kBf16, DataType::kFp16, DataType::kFp32}) {
      note(found, std::string("norm to ") + data_type_name(type), norm && output.out_type == type);
    }
    const bool partials = output.partials == Partials::kPerRank;
    for (const Layout layout : {Layout::kExpertMajor, Layout::kPadded})
      note(found, of_layout("partials", layout), partials && config.layout == layout);
    note(found, "weighted partials", partials && output.weighted);
    note(found, "plain partials", partials && !output.weighted);
    note(found, "partials of bf16", partials && combine.row_type == DataType::kBf16);
    note(found, "partials of fp16", partials && combine.row_type == DataType::kFp16);
    note(found, "partials and copies or constants", partials && reads_tokens);
    note(found, "partials and shared", partials && config.shared.num_ranks > 0);
    note(found, "partials and groups", partials && config.tp_size > 1);
    note(found, "partials and combine wire", partials && config.combine_wire != CombineWire::kNone);
    note(found, "norm and shared output", norm && !output.shared_output.empty());
    note(found, "norm and copies or constants", norm && reads_tokens);
    note(found, "norm and combine wire", norm && config.combine_wire != CombineWire::kNone);
  }
}

void note_round(const ExchangeConfig& config, const Round& round, Features& found) {
  const std::vector<int>& active = round.inputs[0].active_ranks;
  const bool some_active = !active.empty() && active.size() < round.inputs.size();
  note(found, "cached dispatch", round.cached_from >= 0);
  note(found, "dispatch without weights", !round.weights);
  note(found, "no combine", round.combines.empty());
  note(found, "several combines", round.combines.size() > 1);
  note(found, "active ranks", some_active);
  note(found, "active ranks in another order", !std::is_sorted(active.begin(), active.end()));
  note(found, "active ranks, cached", some_active && round.cached_from >= 0);
  note(found, "active ranks and shared", some_active && config.shared.num_ranks > 0);
  note(found, "active ranks and replicas", some_active && !config.replicas.instances.empty());
  note(found, "active ranks and wire", some_active && config.wire != Wire::kNone);
  for (const Layout layout : kLayouts)
    note(found, of_layout("active ranks", layout), some_active && config.layout == layout);
  for (const internal::RankInput& input : round.inputs) note_input(config, input, found);
  for (const internal::RankReceived& received : round.expected)
    note(found, "rank that receives nothing", received.num_rows == 0);
  for (const CombineCase& combine : round.combines) note_combine(config, round, combine, found);
}

std::string ranks_text(std::string text, const std::vector<int>& ranks) {
  for (const int rank : ranks) text += " " + std::to_string(rank);
  return ranks.empty() ? "" : text;
}

}  // namespace

const char* name_of(Algorithm algorithm) {
  constexpr const char* kNames[] = {"auto", "fullmesh", "hierarchical", "allgather"};
  return kNames[static_cast<int>(algorithm)];
}

const char* name_of(NodeSums sums) {
  constexpr const char* kNames[] = {"row_type", "fp32", "exact"};
  return kNames[static_cast<int>(sums)];
}

std::string Scenario::describe() const {
  std::ostringstream text;
  text << "seed " << seed << ": " << num_ranks << " ranks"
       << (nodes.topology.empty() ? "" : " (" + nodes.topology + ")") << ", "
       << name_of(config.algorithm) << ", sums " << name_of(config.node_sums)
       << ", T <= " << config.max_tokens << ", H " << config.hidden << ", E " << config.num_experts
       << (config.expert_rank.empty() ? "" : " (placed)")
       << ranks_text(", tokens on", config.token_ranks)
       << ranks_text(", experts on", config.expert_ranks) << ", K " << config.top_k << ", "
       << data_type_name(config.dtype) << ", " << layout_name(config.layout) << ", alignment "
       << config.expert_alignment << ", depth " << config.depth << ", workers " << config.workers
       << ", wire " << wire_name(config.wire) << " (" << config.scale_bytes << " bytes, "
       << (config.scale_order == ScaleOrder::kRowMajor ? "rows" : "columns") << ") and "
       << wire_name(config.combine_wire) << ", shared " << config.shared.num_experts << " on "
       << config.shared.num_ranks
       << (config.shared.rule == SharedRule::kByRank ? " by rank" : " by token") << ", special "
       << config.special.zero << "/" << config.special.copy << "/" << config.special.constant
       << ", logical experts " << num_expert_ids(config)
       << (config.replicas.instances.empty() ? "" : " (replicas)") << ", groups of "
       << config.tp_size << ", " << rounds.size() << " rounds;";
  return text.str();
}

std::map<std::string, int> Scenario::features() const {
  Features found;
  note_shape(config, num_ranks, found);
  note_wires(config, found);
  note_experts(config, found);
  if (nodes.several()) note_nodes(config, found);
  for (const Round& round : rounds) note_round(config, round, found);
  return found;
}

}  // namespace ferry::test
