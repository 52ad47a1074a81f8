#include "exchange/setup/configuration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>

#include "base/limits.h"
#include "exchange/setup/setup.h"
#include "routing/roles.h"
#include "traffic/choose.h"

namespace ferry::internal {

namespace {

constexpr int kMaxWorkers = 1024;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
constexpr std::int64_t kMaxRowElements = std::int64_t{1} << 31;
constexpr int kMaxExperts = 1 << 20;

void require(bool holds, const char* name, std::int64_t value, std::int64_t least,
             std::int64_t most) {
  if (holds) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} is {}, need {} to {}", name, value, least, most));
}

void require_in(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  require(value >= least && value <= most, name, value, least, most);
}

void check_capacities(const ExchangeConfig& c) {
  require_in("row_capacity", c.row_capacity, 0, kMaxTokens);
  require_in("expert_capacity", c.expert_capacity, 0, kMaxTokens);
  if (c.layout == Layout::kPadded && c.row_capacity > 0) {
    throw Error(Code::kInvalidArgument,
                "row_capacity does not apply to the padded layout; set expert_capacity");
  }
  if (c.layout != Layout::kPadded && c.expert_capacity > 0) {
    throw Error(Code::kInvalidArgument,
                fmt::format("expert_capacity {} is for the padded layout, this one is {}",
                            c.expert_capacity, layout_name(c.layout)));
  }
}

void check_wires(const ExchangeConfig& c) {
  require_in("wire", static_cast<int>(c.wire), 0, static_cast<int>(Wire::kFp8Ue8m0));
  require_in("combine_wire", static_cast<int>(c.combine_wire), 0,
             static_cast<int>(CombineWire::kLogfmt10));
  require_in("scale_order", static_cast<int>(c.scale_order), 0, 1);
  require_in("scale_bytes", c.scale_bytes, 0, kMaxRowElements);
  if (c.wire != Wire::kNone && c.dtype > DataType::kFp32) {
    throw Error(Code::kInvalidArgument,
                fmt::format("wire {} takes bf16, fp16 or fp32 tokens, dtype is {}",
                            wire_name(c.wire), data_type_name(c.dtype)));
  }
  if (c.wire != Wire::kNone && c.scale_bytes > 0) {
    throw Error(Code::kInvalidArgument,
                fmt::format("scale_bytes is {}, wire {} makes scales of its own", c.scale_bytes,
                            wire_name(c.wire)));
  }
  if (c.scale_order == ScaleOrder::kColumnMajor && c.scale_bytes % 4 != 0) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("scale_bytes is {}, column-major scales have 4 bytes each", c.scale_bytes));
  }
}

void check_shared(const ExchangeConfig& c, int domain_ranks) {
  const SharedExperts& shared = c.shared;
  require_in("shared.num_ranks", shared.num_ranks, 0, domain_ranks);
  require_in("shared.rule", static_cast<int>(shared.rule), 0, 1);
  if ((shared.num_experts == 0) != (shared.num_ranks == 0) ||
      (shared.num_experts > 0 && shared.num_ranks % shared.num_experts != 0)) {
    throw Error(Code::kInvalidArgument,
                fmt::format("shared.num_ranks is {}, need a multiple of shared.num_experts {}",
                            shared.num_ranks, shared.num_experts));
  }
  if (shared.rule == SharedRule::kByToken && shared.num_experts > 1) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("shared.num_experts is {}, the rule by token takes 1", shared.num_experts));
  }
}

void check_replicas(const ExchangeConfig& c) {
  require_in("replicas.choice", static_cast<int>(c.replicas.choice), 0,
             static_cast<int>(ReplicaChoice::kByTable));
  std::vector<bool> taken(c.num_experts);
  for (std::size_t id = 0; id < c.replicas.instances.size(); ++id) {
    if (c.replicas.instances[id].empty()) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("replicas.instances[{}] is empty, need 1 expert or more", id));
    }
    for (const int expert : c.replicas.instances[id]) {
      if (expert < 0 || expert >= c.num_experts || taken[expert]) {
        throw Error(Code::kInvalidArgument,
                    fmt::format("replicas.instances[{}] names expert {}, need experts in [0, {}), "
                                "each once",
                                id, expert, c.num_experts));
      }
      taken[expert] = true;
    }
  }
}

}  // namespace

ExchangeConfig complete_config(ExchangeConfig c, int num_ranks) {
  require_in("max_tokens", c.max_tokens, 0, kMaxTokens);
  require_in("hidden", c.hidden, 1, kMaxRowElements);
  require_in("num_experts", c.num_experts, 1, kMaxExperts);
  require_in("top_k", c.top_k, 1, kMaxTopK);
  require_in("shared.num_experts", c.shared.num_experts, 0, kMaxSharedExperts);
  if (c.max_tokens * (c.top_k + c.shared.num_experts) >= kMaxTokens) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("max_tokens {} with {} entries each (top_k, shared experts), need fewer "
                    "than {} entries",
                    c.max_tokens, c.top_k + c.shared.num_experts, kMaxTokens));
  }
  require_in("dtype", static_cast<int>(c.dtype), 0, static_cast<int>(DataType::kBytes));
  require_in("layout", static_cast<int>(c.layout), 0, static_cast<int>(Layout::kPadded));
  require_in("expert_alignment", c.expert_alignment, 1, 1 << 20);
  require_in("max_output_row_bytes", c.max_output_row_bytes, 0, 4 * kMaxRowElements);
  require_in("depth", c.depth, 1, kMaxDepth);
  require_in("workers", c.workers, 1, kMaxWorkers);
  require_in("tp_size", c.tp_size, 1, kMaxTpSize);
  require_in("algorithm", static_cast<int>(c.algorithm), 0, 3);
  require_in("node_sums", static_cast<int>(c.node_sums), 0, 2);
  require_in("special.zero", c.special.zero, 0, kMaxExperts);
  require_in("special.copy", c.special.copy, 0, kMaxExperts);
  require_in("special.constant", c.special.constant, 0, kMaxExperts);
  check_capacities(c);
  check_wires(c);
  check_shared(c, num_ranks / c.tp_size);
  check_replicas(c);
  const int num_sources = num_token_ranks(c, num_ranks / c.tp_size) * c.tp_size;
  if (c.layout == Layout::kPadded && c.expert_capacity == 0)
    c.expert_capacity = std::max<std::int64_t>(1, c.max_tokens * num_sources);
  if (c.max_output_row_bytes == 0) c.max_output_row_bytes = c.hidden * 4;
  return c;
}

namespace {

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(DataType value) { return data_type_name(value); }
std::string text_of(Layout value) { return layout_name(value); }
std::string text_of(Wire value) { return wire_name(value); }
std::string text_of(CombineWire value) { return wire_name(value); }
std::string text_of(Algorithm value) { return algorithm_name(value); }
std::string text_of(const std::vector<int>& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}
template <typename Enum>
requires std::is_enum_v<Enum> std::string text_of(Enum value) {
  return std::to_string(static_cast<int>(value));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> config_fields(const ExchangeConfig& config) {
  // Names every field, so that a new field is a compile error here until it is either compared or
  // left out. `workers` is left out, because it may differ between ranks.
  const auto& [max_tokens, hidden, num_experts, top_k, dtype, layout, expert_alignment, zero_gaps,
               row_capacity, expert_capacity, expert_rank, token_ranks, expert_ranks,
               max_output_row_bytes, depth, workers, wire, combine_wire, scale_order, scale_bytes,
               shared, special, replicas, tp_size, algorithm, node_sums] = config;
  const auto& [num_shared, shared_ranks, shared_rule] = shared;
  const auto& [zero, copy, constant] = special;
  const auto& [instances, choice] = replicas;
  static_cast<void>(workers);
  std::string all_instances;
  for (const std::vector<int>& of_id : instances) all_instances += text_of(of_id);
  return {{"max_tokens", text_of(max_tokens)},
          {"hidden", text_of(hidden)},
          {"num_experts", std::to_string(num_experts)},
          {"top_k", std::to_string(top_k)},
          {"dtype", text_of(dtype)},
          {"layout", text_of(layout)},
          {"expert_alignment", text_of(expert_alignment)},
          {"zero_gaps", text_of(zero_gaps)},
          {"row_capacity", text_of(row_capacity)},
          {"expert_capacity", text_of(expert_capacity)},
          {"expert_rank", text_of(expert_rank)},
          {"token_ranks", text_of(token_ranks)},
          {"expert_ranks", text_of(expert_ranks)},
          {"max_output_row_bytes", text_of(max_output_row_bytes)},
          {"depth", std::to_string(depth)},
          {"wire", text_of(wire)},
          {"combine_wire", text_of(combine_wire)},
          {"scale_order", text_of(scale_order)},
          {"scale_bytes", text_of(scale_bytes)},
          {"shared.num_experts", std::to_string(num_shared)},
          {"shared.num_ranks", std::to_string(shared_ranks)},
          {"shared.rule", text_of(shared_rule)},
          {"special.zero", std::to_string(zero)},
          {"special.copy", std::to_string(copy)},
          {"special.constant", std::to_string(constant)},
          {"replicas.instances", all_instances},
          {"replicas.choice", text_of(choice)},
          {"tp_size", std::to_string(tp_size)},
          {"algorithm", text_of(algorithm)},
          {"node_sums", text_of(node_sums)}};
}

std::string config_text(const ExchangeConfig& config) {
  std::string text;
  for (const auto& [name, value] : config_fields(config))
    text += fmt::format("{} is {}\n", name, value);
  return text;
}

}  // namespace ferry::internal

namespace ferry {

namespace {

// `rank` -1: a rank that has experts and tokens.
WindowBytes bytes_of_rank(const ExchangeConfig& config, int num_ranks, int rank) {
  using namespace internal;
  if (num_ranks < 1)
    throw Error(Code::kInvalidArgument, fmt::format("num_ranks is {}, need 1 or more", num_ranks));
  const ExchangeConfig complete = complete_config(config, num_ranks);
  const ActiveSet everybody(complete, num_ranks, 0, {});
  const SegmentPlaces places(complete, everybody.map, std::vector<int>(num_ranks));
  const WindowShape shape = window_shape(complete, everybody.map, places);
  const WindowLayout layout(complete, shape);
  const std::uint64_t sections = complete.layout == Layout::kPadded ? shape.max_local : 1;
  const std::uint64_t row = layout.row_bytes() + layout.scale_bytes() + layout.metadata_bytes();
  WindowBytes bytes{layout.control_bytes() + layout.sums_bytes(), 0};
  if (rank < 0 || places.sends(rank)) bytes.expected += layout.row_lists_bytes();
  if (rank < 0 || places.receives(rank)) {
    bytes.expected += sections * layout.expected_section_rows() * row;
    bytes.worst = layout.window_bytes();
  }
  return bytes;
}

}  // namespace

WindowBytes window_bytes(const ExchangeConfig& config, int num_ranks) {
  return bytes_of_rank(config, num_ranks, -1);
}

WindowBytes window_bytes(const ExchangeConfig& config, int num_ranks, int rank) {
  if (num_ranks >= 1 && (rank < 0 || rank >= num_ranks)) {
    throw Error(Code::kInvalidArgument,
                fmt::format("rank is {}, need 0 to {}", rank, num_ranks - 1));
  }
  return bytes_of_rank(config, num_ranks, rank);
}

}  // namespace ferry
