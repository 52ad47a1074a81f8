// Functions that convert arguments, received rows and statistics name every member of the C++
// struct in a structured binding: this file does not compile with a new member until the C ABI has
// it.
#include "capi/convert.h"

#include <fmt/format.h>

#include <cstdint>

#include "base/check.h"
#include "capi/boundary.h"

namespace ferry::capi {

namespace {

Handle handle_of(const ferry_handle* given) { return given ? given->handle : Handle{}; }

// The address of an array; null where the array is empty.
template <typename Element>
const Element* first_of(std::span<const Element> array) noexcept {
  return array.empty() ? nullptr : array.data();
}

}  // namespace

FlatReplicas::FlatReplicas(const Replicas& replicas) {
  if (replicas.instances.empty()) return;
  offsets.push_back(0);
  for (const std::vector<int>& expert : replicas.instances) {
    instances.insert(instances.end(), expert.begin(), expert.end());
    offsets.push_back(static_cast<std::int64_t>(instances.size()));
  }
  FERRY_CHECK(offsets.size(), ==, replicas.instances.size() + 1);
  FERRY_CHECK(offsets.back(), ==, std::ssize(instances));
}

GroupSettings to_group_settings(const ferry_group_options* given) {
  GroupSettings settings;
  if (given == nullptr) return settings;
  const ferry_group_options c = read(given, "ferry_group_options");
  auto& [deadline, interrupted, name, topology, newcomer, members] = settings.options;
  deadline = std::chrono::nanoseconds(or_default<std::int64_t>(c.deadline_ns, deadline.count()));
  name = c.name ? c.name : "";
  topology = c.topology ? c.topology : "";
  newcomer = c.newcomer != 0;
  const std::span<const int> first = array_of(c.members, c.num_members, "members");
  members.assign(first.begin(), first.end());
  if (c.interrupted)
    interrupted = [asked = c.interrupted, context = c.interrupted_context] {
      return asked(context) != 0;
    };
  if (c.allocator) settings.allocator = Allocator(read(c.allocator, "ferry_allocator"));
  return settings;
}

AllGather to_all_gather(const ferry_all_gather* given) {
  const ferry_all_gather c = read(given, "ferry_all_gather");
  if (c.gather == nullptr) return {};
  return [c](const void* mine, void* all, std::size_t bytes) {
    return c.gather(mine, all, bytes, c.context) == 0;
  };
}

DispatchArgs to_dispatch_args(const ferry_dispatch_args* given) {
  const ferry_dispatch_args c = read(given, "ferry_dispatch_args");
  DispatchArgs args;
  auto& [tokens, topk_ids, topk_weights, token_mask, topk_mask, cached, deadline, scales,
         token_scales, replica_table, active_ranks, digests] = args;
  static_cast<void>(digests);  // only fronts in C++ set it
  tokens = {c.tokens, c.num_tokens, c.hidden, enum_of<DataType>(c.dtype), c.tokens_pitch_bytes};
  topk_ids = {c.topk_ids, c.num_tokens, c.top_k, enum_of<IndexType>(c.topk_ids_type)};
  topk_weights = c.topk_weights;
  token_mask = c.token_mask;
  topk_mask = c.topk_mask;
  cached = handle_of(c.cached);
  deadline = std::chrono::nanoseconds(c.deadline_ns);
  scales = {c.scales, c.num_scale_rows, c.num_scale_channels};
  token_scales = c.token_scales;
  replica_table = c.replica_table;
  active_ranks = array_of(c.active_ranks, c.num_active_ranks, "active_ranks");
  return args;
}

CombineArgs to_combine_args(const ferry_combine_args* given, DispatchArgs& kept) {
  const ferry_combine_args c = read(given, "ferry_combine_args");
  CombineArgs args;
  auto& [handle, expert_rows, in_place, topk_weights, bias, row_weights, out, out_dtype,
         out_pitch_bytes, out_topk_weights, deadline, dispatched, constants, shared_output, norm,
         digests, partials] = args;
  static_cast<void>(digests);
  handle = handle_of(c.handle);
  expert_rows = {c.expert_rows, c.num_rows, c.hidden, enum_of<DataType>(c.dtype),
                 c.rows_pitch_bytes};
  in_place = c.copy_rows == 0;
  topk_weights = c.topk_weights;
  bias = {c.bias[0], c.bias[1]};
  row_weights = c.row_weights;
  out = c.out;
  out_dtype = enum_of<DataType>(c.out_dtype);
  out_pitch_bytes = c.out_pitch_bytes;
  out_topk_weights = c.out_topk_weights;
  deadline = std::chrono::nanoseconds(c.deadline_ns);
  if (c.dispatched) {
    kept = to_dispatch_args(c.dispatched);
    dispatched = &kept;
  }
  constants = {c.alpha1, c.alpha2, c.constants};
  shared_output = c.shared_output;
  const float epsilon = or_default(static_cast<float>(c.epsilon), norm.epsilon);
  norm = {c.residual, c.gamma, epsilon, c.y, c.rstd};
  partials = enum_of<Partials>(c.partials);
  return args;
}

ferry_config from_config(const ExchangeConfig& config, const FlatReplicas& flat) {
  ferry_config c = {};
  c.max_tokens = config.max_tokens;
  c.hidden = config.hidden;
  c.num_experts = config.num_experts;
  c.top_k = config.top_k;
  c.dtype = static_cast<std::int32_t>(config.dtype);
  c.layout = static_cast<std::int32_t>(config.layout);
  c.expert_alignment = config.expert_alignment;
  c.row_capacity = config.row_capacity;
  c.expert_capacity = config.expert_capacity;
  c.max_output_row_bytes = config.max_output_row_bytes;
  c.expert_rank = first_of<std::int32_t>(config.expert_rank);
  c.zero_gaps = config.zero_gaps;
  c.depth = config.depth;
  c.workers = config.workers;
  c.tp_size = config.tp_size;
  c.wire = static_cast<std::int32_t>(config.wire);
  c.combine_wire = static_cast<std::int32_t>(config.combine_wire);
  c.scale_order = static_cast<std::int32_t>(config.scale_order);
  c.shared_rule = static_cast<std::int32_t>(config.shared.rule);
  c.scale_bytes = config.scale_bytes;
  c.num_shared_experts = config.shared.num_experts;
  c.num_shared_ranks = config.shared.num_ranks;
  c.num_zero_experts = config.special.zero;
  c.num_copy_experts = config.special.copy;
  c.num_constant_experts = config.special.constant;
  c.replica_choice = static_cast<std::int32_t>(config.replicas.choice);
  const std::size_t num_logical = config.replicas.instances.size();
  FERRY_CHECK(flat.offsets.size(), ==, num_logical == 0 ? 0 : num_logical + 1);
  c.num_logical_experts = static_cast<std::int64_t>(num_logical);
  c.replica_offsets = first_of<std::int64_t>(flat.offsets);
  c.replica_instances = first_of<std::int32_t>(flat.instances);
  c.algorithm = static_cast<std::int32_t>(config.algorithm);
  c.node_sums = static_cast<std::int32_t>(config.node_sums);
  c.token_ranks = first_of<std::int32_t>(config.token_ranks);
  c.expert_ranks = first_of<std::int32_t>(config.expert_ranks);
  c.num_token_ranks = static_cast<std::int32_t>(config.token_ranks.size());
  c.num_expert_ranks = static_cast<std::int32_t>(config.expert_ranks.size());
  return c;
}

ferry_received from_received(ReceivedOwner& owner) {
  const auto& [data, num_rows, room_rows, hidden, dtype, sources, weights, topk_ids, scales, handle,
               pin] = owner.received;
  static_cast<void>(room_rows);
  // The handle of C outlives the rows, so it was copied before.
  FERRY_CHECK(owner.handle.handle.num_rows(), ==, handle.num_rows());
  ferry_received c = {};
  c.owner = &owner;
  c.data = data;
  c.num_rows = num_rows;
  c.hidden = hidden;
  c.sources = first_of(sources);
  c.weights = first_of(weights);
  c.topk_ids = first_of(topk_ids);
  c.handle = &owner.handle;
  c.dtype = static_cast<std::int32_t>(dtype);
  c.scale_element_bytes = static_cast<std::int32_t>(scales.element_bytes);
  c.scales = scales.data;
  c.scale_columns = scales.columns;
  c.scale_row_stride = scales.row_stride;
  c.scale_column_stride = scales.column_stride;
  c.scale_section_stride = scales.section_stride;
  return c;
}

ferry_output_rows from_output_rows(OutputsOwner& owner) {
  ferry_output_rows c = {};
  c.owner = &owner;
  c.data = owner.rows.data;
  c.num_rows = owner.rows.num_rows;
  c.hidden = owner.rows.hidden;
  return c;
}

ferry_counts from_handle(const Handle& handle) {
  const std::size_t num_local = handle.tokens_per_expert().size();
  FERRY_CHECK(handle.aligned_tokens_per_expert().size(), ==, num_local);
  if (!handle.expert_offsets().empty())
    FERRY_CHECK(handle.expert_offsets().size(), ==, num_local + 1);
  ferry_counts c = {};
  c.num_tokens = handle.num_tokens();
  c.num_rows = handle.num_rows();
  c.num_local_experts = static_cast<std::int64_t>(num_local);
  c.tokens_per_expert = first_of(handle.tokens_per_expert());
  c.aligned_tokens_per_expert = first_of(handle.aligned_tokens_per_expert());
  c.expert_offsets = first_of(handle.expert_offsets());
  c.running_counts = first_of(handle.running_counts());
  c.num_running_counts = static_cast<std::int64_t>(handle.running_counts().size());
  c.running_rows_per_rank = first_of(handle.running_rows_per_rank());
  c.num_running_rows = static_cast<std::int64_t>(handle.running_rows_per_rank().size());
  return c;
}

ferry_window from_window_bytes(const WindowBytes& bytes) {
  ferry_window c = {};
  c.expected_bytes = bytes.expected;
  c.worst_bytes = bytes.worst;
  return c;
}

ferry_stats from_stats(const ExchangeStats& stats) {
  ferry_stats c = {};
  const auto& [dispatches, combines, rows_sent, rows_received, bytes_sent, bytes_pulled,
               bytes_copied, window_growths, link_row_bytes, link_bytes] = stats;
  c.dispatches = dispatches;
  c.combines = combines;
  c.rows_sent = rows_sent;
  c.rows_received = rows_received;
  c.bytes_sent = bytes_sent;
  c.bytes_pulled = bytes_pulled;
  c.bytes_copied = bytes_copied;
  c.window_growths = window_growths;
  c.link_row_bytes = link_row_bytes;
  c.link_bytes = link_bytes;
  return c;
}

ferry_times from_times(const OperationTimes& times) {
  ferry_times c = {};
  c.num_spans = static_cast<std::int64_t>(times.spans.size());
  c.wait_ns = first_of<std::int64_t>(times.wait_ns);
  c.num_sources = static_cast<std::int64_t>(times.wait_ns.size());
  return c;
}

ferry_span from_span(const OperationTimes::Span& span) {
  ferry_span c = {};
  c.phase = span.phase;
  c.begin_ns = span.begin_ns;
  c.end_ns = span.end_ns;
  return c;
}

}  // namespace ferry::capi
