#include "capi/config.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "capi/boundary.h"

namespace ferry::capi {

namespace {

std::vector<std::vector<int>> to_instances(const ferry_config& c) {
  if (c.num_logical_experts == 0) return {};
  const auto offsets = array_of(c.replica_offsets, c.num_logical_experts, "replica_offsets");
  std::vector<std::vector<int>> instances(offsets.size());
  std::int64_t begin = 0;
  for (std::size_t e = 0; e < instances.size(); ++e) {
    const std::int64_t end = c.replica_offsets[e + 1];
    if (offsets[e] != begin || end < begin) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("replica_offsets[{}] is {} and [{}] is {}: they begin with 0 and do "
                              "not descend",
                              e, offsets[e], e + 1, end));
    }
    const auto all = array_of(c.replica_instances, end, "replica_instances");
    instances[e].assign(all.begin() + begin, all.end());
    begin = end;
  }
  return instances;
}

std::vector<int> to_ranks(const std::int32_t* data, std::int64_t count, const char* name) {
  const auto ranks = array_of(data, count, name);
  return {ranks.begin(), ranks.end()};
}

}  // namespace

// A structured binding names every member of ExchangeConfig: a member added there breaks the build
// here until the C ABI carries it.
ExchangeConfig to_config(const ferry_config* given) {
  const ferry_config c = read(given, "ferry_config");
  ExchangeConfig config;
  auto& [max_tokens, hidden, num_experts, top_k, dtype, layout, expert_alignment, zero_gaps,
         row_capacity, expert_capacity, expert_rank, token_ranks, expert_ranks,
         max_output_row_bytes, depth, workers, wire, combine_wire, scale_order, scale_bytes, shared,
         special, replicas, tp_size, algorithm, node_sums] = config;
  max_tokens = c.max_tokens;
  hidden = c.hidden;
  num_experts = c.num_experts;
  top_k = c.top_k;
  dtype = enum_of<DataType>(c.dtype);
  layout = enum_of<Layout>(c.layout);
  expert_alignment = or_default(c.expert_alignment, expert_alignment);
  zero_gaps = c.zero_gaps != 0;
  row_capacity = c.row_capacity;
  expert_capacity = c.expert_capacity;
  if (c.expert_rank && c.num_experts > 0)
    expert_rank.assign(c.expert_rank, c.expert_rank + c.num_experts);
  token_ranks = to_ranks(c.token_ranks, c.num_token_ranks, "token_ranks");
  expert_ranks = to_ranks(c.expert_ranks, c.num_expert_ranks, "expert_ranks");
  max_output_row_bytes = c.max_output_row_bytes;
  depth = or_default(c.depth, depth);
  workers = or_default(c.workers, workers);
  wire = enum_of<Wire>(c.wire);
  combine_wire = enum_of<CombineWire>(c.combine_wire);
  scale_order = enum_of<ScaleOrder>(c.scale_order);
  scale_bytes = c.scale_bytes;
  shared = {c.num_shared_experts, c.num_shared_ranks, enum_of<SharedRule>(c.shared_rule)};
  special = {c.num_zero_experts, c.num_copy_experts, c.num_constant_experts};
  replicas = {to_instances(c), enum_of<ReplicaChoice>(c.replica_choice)};
  tp_size = or_default(c.tp_size, tp_size);
  algorithm = enum_of<Algorithm>(c.algorithm);
  node_sums = enum_of<NodeSums>(c.node_sums);
  return config;
}

}  // namespace ferry::capi
