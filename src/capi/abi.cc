// The layout of the C ABI: the offset of every field, which never changes, the present size of
// every struct, and the values of enumerations, which are those of the C++ API. A struct grows at
// its end only, in multiples of 8 bytes without padding: the library would read the padding of an
// old caller as a field of a newer struct.
#include <cstddef>

#include "ferry/config.h"
#include "ferry/ferry.h"
#include "ferry/status.h"
#include "ferry/types.h"

#define FERRY_AT(type, field, bytes) \
  static_assert(offsetof(type, field) == (bytes), "fields of the C ABI never move")
#define FERRY_STRUCT(type, bytes)                                   \
  static_assert(sizeof(type) == (bytes), "as long as stated here"); \
  FERRY_AT(type, struct_size, 0);                                   \
  FERRY_AT(type, version, 4)

FERRY_STRUCT(ferry_allocator, 32);
FERRY_AT(ferry_allocator, allocate, 8);
FERRY_AT(ferry_allocator, release, 16);
FERRY_AT(ferry_allocator, context, 24);

FERRY_STRUCT(ferry_all_gather, 24);
FERRY_AT(ferry_all_gather, gather, 8);
FERRY_AT(ferry_all_gather, context, 16);

FERRY_STRUCT(ferry_group_options, 80);
FERRY_AT(ferry_group_options, deadline_ns, 8);
FERRY_AT(ferry_group_options, name, 16);
FERRY_AT(ferry_group_options, allocator, 24);
FERRY_AT(ferry_group_options, topology, 32);
FERRY_AT(ferry_group_options, interrupted, 40);
FERRY_AT(ferry_group_options, interrupted_context, 48);
FERRY_AT(ferry_group_options, newcomer, 56);
FERRY_AT(ferry_group_options, members, 64);
FERRY_AT(ferry_group_options, num_members, 72);

FERRY_STRUCT(ferry_config, 200);
FERRY_AT(ferry_config, max_tokens, 8);
FERRY_AT(ferry_config, hidden, 16);
FERRY_AT(ferry_config, num_experts, 24);
FERRY_AT(ferry_config, top_k, 28);
FERRY_AT(ferry_config, dtype, 32);
FERRY_AT(ferry_config, layout, 36);
FERRY_AT(ferry_config, expert_alignment, 40);
FERRY_AT(ferry_config, row_capacity, 48);
FERRY_AT(ferry_config, expert_capacity, 56);
FERRY_AT(ferry_config, max_output_row_bytes, 64);
FERRY_AT(ferry_config, expert_rank, 72);
FERRY_AT(ferry_config, zero_gaps, 80);
FERRY_AT(ferry_config, depth, 84);
FERRY_AT(ferry_config, workers, 88);
FERRY_AT(ferry_config, tp_size, 92);
FERRY_AT(ferry_config, wire, 96);
FERRY_AT(ferry_config, combine_wire, 100);
FERRY_AT(ferry_config, scale_order, 104);
FERRY_AT(ferry_config, shared_rule, 108);
FERRY_AT(ferry_config, scale_bytes, 112);
FERRY_AT(ferry_config, num_shared_experts, 120);
FERRY_AT(ferry_config, num_shared_ranks, 124);
FERRY_AT(ferry_config, num_zero_experts, 128);
FERRY_AT(ferry_config, num_copy_experts, 132);
FERRY_AT(ferry_config, num_constant_experts, 136);
FERRY_AT(ferry_config, replica_choice, 140);
FERRY_AT(ferry_config, num_logical_experts, 144);
FERRY_AT(ferry_config, replica_offsets, 152);
FERRY_AT(ferry_config, replica_instances, 160);
FERRY_AT(ferry_config, algorithm, 168);
FERRY_AT(ferry_config, node_sums, 172);
FERRY_AT(ferry_config, token_ranks, 176);
FERRY_AT(ferry_config, expert_ranks, 184);
FERRY_AT(ferry_config, num_token_ranks, 192);
FERRY_AT(ferry_config, num_expert_ranks, 196);

FERRY_STRUCT(ferry_window, 24);
FERRY_AT(ferry_window, expected_bytes, 8);
FERRY_AT(ferry_window, worst_bytes, 16);

FERRY_STRUCT(ferry_dispatch_args, 152);
FERRY_AT(ferry_dispatch_args, tokens, 8);
FERRY_AT(ferry_dispatch_args, num_tokens, 16);
FERRY_AT(ferry_dispatch_args, hidden, 24);
FERRY_AT(ferry_dispatch_args, tokens_pitch_bytes, 32);
FERRY_AT(ferry_dispatch_args, topk_ids, 40);
FERRY_AT(ferry_dispatch_args, dtype, 48);
FERRY_AT(ferry_dispatch_args, topk_ids_type, 52);
FERRY_AT(ferry_dispatch_args, top_k, 56);
FERRY_AT(ferry_dispatch_args, num_scale_rows, 60);
FERRY_AT(ferry_dispatch_args, topk_weights, 64);
FERRY_AT(ferry_dispatch_args, token_mask, 72);
FERRY_AT(ferry_dispatch_args, topk_mask, 80);
FERRY_AT(ferry_dispatch_args, cached, 88);
FERRY_AT(ferry_dispatch_args, deadline_ns, 96);
FERRY_AT(ferry_dispatch_args, scales, 104);
FERRY_AT(ferry_dispatch_args, num_scale_channels, 112);
FERRY_AT(ferry_dispatch_args, token_scales, 120);
FERRY_AT(ferry_dispatch_args, replica_table, 128);
FERRY_AT(ferry_dispatch_args, active_ranks, 136);
FERRY_AT(ferry_dispatch_args, num_active_ranks, 144);

FERRY_STRUCT(ferry_received, 120);
FERRY_AT(ferry_received, owner, 8);
FERRY_AT(ferry_received, data, 16);
FERRY_AT(ferry_received, num_rows, 24);
FERRY_AT(ferry_received, hidden, 32);
FERRY_AT(ferry_received, sources, 40);
FERRY_AT(ferry_received, weights, 48);
FERRY_AT(ferry_received, topk_ids, 56);
FERRY_AT(ferry_received, handle, 64);
FERRY_AT(ferry_received, dtype, 72);
FERRY_AT(ferry_received, scale_element_bytes, 76);
FERRY_AT(ferry_received, scales, 80);
FERRY_AT(ferry_received, scale_columns, 88);
FERRY_AT(ferry_received, scale_row_stride, 96);
FERRY_AT(ferry_received, scale_column_stride, 104);
FERRY_AT(ferry_received, scale_section_stride, 112);

FERRY_STRUCT(ferry_output_rows, 40);
FERRY_AT(ferry_output_rows, owner, 8);
FERRY_AT(ferry_output_rows, data, 16);
FERRY_AT(ferry_output_rows, num_rows, 24);
FERRY_AT(ferry_output_rows, hidden, 32);

FERRY_STRUCT(ferry_combine_args, 216);
FERRY_AT(ferry_combine_args, handle, 8);
FERRY_AT(ferry_combine_args, expert_rows, 16);
FERRY_AT(ferry_combine_args, num_rows, 24);
FERRY_AT(ferry_combine_args, hidden, 32);
FERRY_AT(ferry_combine_args, rows_pitch_bytes, 40);
FERRY_AT(ferry_combine_args, dtype, 48);
FERRY_AT(ferry_combine_args, out_dtype, 52);
FERRY_AT(ferry_combine_args, topk_weights, 56);
FERRY_AT(ferry_combine_args, bias, 64);
FERRY_AT(ferry_combine_args, row_weights, 80);
FERRY_AT(ferry_combine_args, out, 88);
FERRY_AT(ferry_combine_args, out_pitch_bytes, 96);
FERRY_AT(ferry_combine_args, out_topk_weights, 104);
FERRY_AT(ferry_combine_args, deadline_ns, 112);
FERRY_AT(ferry_combine_args, dispatched, 120);
FERRY_AT(ferry_combine_args, alpha1, 128);
FERRY_AT(ferry_combine_args, alpha2, 136);
FERRY_AT(ferry_combine_args, constants, 144);
FERRY_AT(ferry_combine_args, shared_output, 152);
FERRY_AT(ferry_combine_args, residual, 160);
FERRY_AT(ferry_combine_args, gamma, 168);
FERRY_AT(ferry_combine_args, y, 176);
FERRY_AT(ferry_combine_args, rstd, 184);
FERRY_AT(ferry_combine_args, epsilon, 192);
FERRY_AT(ferry_combine_args, partials, 200);
FERRY_AT(ferry_combine_args, copy_rows, 208);

FERRY_STRUCT(ferry_counts, 88);
FERRY_AT(ferry_counts, num_tokens, 8);
FERRY_AT(ferry_counts, num_rows, 16);
FERRY_AT(ferry_counts, num_local_experts, 24);
FERRY_AT(ferry_counts, tokens_per_expert, 32);
FERRY_AT(ferry_counts, aligned_tokens_per_expert, 40);
FERRY_AT(ferry_counts, expert_offsets, 48);
FERRY_AT(ferry_counts, running_counts, 56);
FERRY_AT(ferry_counts, num_running_counts, 64);
FERRY_AT(ferry_counts, running_rows_per_rank, 72);
FERRY_AT(ferry_counts, num_running_rows, 80);

FERRY_STRUCT(ferry_stats, 88);
FERRY_AT(ferry_stats, dispatches, 8);
FERRY_AT(ferry_stats, combines, 16);
FERRY_AT(ferry_stats, rows_sent, 24);
FERRY_AT(ferry_stats, rows_received, 32);
FERRY_AT(ferry_stats, bytes_sent, 40);
FERRY_AT(ferry_stats, bytes_pulled, 48);
FERRY_AT(ferry_stats, bytes_copied, 56);
FERRY_AT(ferry_stats, window_growths, 64);
FERRY_AT(ferry_stats, link_row_bytes, 72);
FERRY_AT(ferry_stats, link_bytes, 80);

FERRY_STRUCT(ferry_times, 32);
FERRY_AT(ferry_times, num_spans, 8);
FERRY_AT(ferry_times, wait_ns, 16);
FERRY_AT(ferry_times, num_sources, 24);

FERRY_STRUCT(ferry_span, 32);
FERRY_AT(ferry_span, phase, 8);
FERRY_AT(ferry_span, begin_ns, 16);
FERRY_AT(ferry_span, end_ns, 24);

FERRY_STRUCT(ferry_collectives_options, 32);
FERRY_AT(ferry_collectives_options, deadline_ns, 8);
FERRY_AT(ferry_collectives_options, window_bytes, 16);
FERRY_AT(ferry_collectives_options, shared_bytes, 24);

FERRY_STRUCT(ferry_collective_args, 72);
FERRY_AT(ferry_collective_args, in, 8);
FERRY_AT(ferry_collective_args, out, 16);
FERRY_AT(ferry_collective_args, count, 24);
FERRY_AT(ferry_collective_args, counts, 32);
FERRY_AT(ferry_collective_args, out_counts, 40);
FERRY_AT(ferry_collective_args, dtype, 48);
FERRY_AT(ferry_collective_args, op, 52);
FERRY_AT(ferry_collective_args, root, 56);
FERRY_AT(ferry_collective_args, deadline_ns, 64);

FERRY_STRUCT(ferry_message_args, 56);
FERRY_AT(ferry_message_args, in, 8);
FERRY_AT(ferry_message_args, out, 16);
FERRY_AT(ferry_message_args, count, 24);
FERRY_AT(ferry_message_args, tag, 32);
FERRY_AT(ferry_message_args, dtype, 40);
FERRY_AT(ferry_message_args, peer, 44);
FERRY_AT(ferry_message_args, deadline_ns, 48);

FERRY_STRUCT(ferry_plan_args, 40);
FERRY_AT(ferry_plan_args, machine, 8);
FERRY_AT(ferry_plan_args, config, 16);
FERRY_AT(ferry_plan_args, loads, 24);
FERRY_AT(ferry_plan_args, groups, 32);
FERRY_AT(ferry_plan_args, groups_chosen, 36);

FERRY_STRUCT(ferry_prediction, 72);
FERRY_AT(ferry_prediction, strategy, 8);
FERRY_AT(ferry_prediction, limited_by, 16);
FERRY_AT(ferry_prediction, dispatch_us, 24);
FERRY_AT(ferry_prediction, combine_us, 32);
FERRY_AT(ferry_prediction, dispatch_bound_us, 40);
FERRY_AT(ferry_prediction, combine_bound_us, 48);
FERRY_AT(ferry_prediction, received_bytes, 56);
FERRY_AT(ferry_prediction, staged_bytes, 64);

static_assert(sizeof(int) == 4 && sizeof(void*) == 8 && sizeof(std::size_t) == 8);

namespace {

template <typename Enum>
constexpr bool same(int c, Enum cpp) {
  return c == static_cast<int>(cpp);
}

}  // namespace

#define FERRY_SAME(c, cpp) static_assert(same(c, cpp), "enumerators are those of the C++ API")

FERRY_SAME(FERRY_OK, ferry::Code::kOk);
FERRY_SAME(FERRY_INVALID_ARGUMENT, ferry::Code::kInvalidArgument);
FERRY_SAME(FERRY_PEER_REJECTED, ferry::Code::kPeerRejected);
FERRY_SAME(FERRY_MISMATCH, ferry::Code::kMismatch);
FERRY_SAME(FERRY_CAPACITY, ferry::Code::kCapacity);
FERRY_SAME(FERRY_PEER_LOST, ferry::Code::kPeerLost);
FERRY_SAME(FERRY_TIMEOUT, ferry::Code::kTimeout);
FERRY_SAME(FERRY_BROKEN, ferry::Code::kBroken);
FERRY_SAME(FERRY_CLOSED, ferry::Code::kClosed);
FERRY_SAME(FERRY_SYSTEM, ferry::Code::kSystem);
FERRY_SAME(FERRY_INTERRUPTED, ferry::Code::kInterrupted);

FERRY_SAME(FERRY_TYPE_BF16, ferry::DataType::kBf16);
FERRY_SAME(FERRY_TYPE_FP16, ferry::DataType::kFp16);
FERRY_SAME(FERRY_TYPE_FP32, ferry::DataType::kFp32);
FERRY_SAME(FERRY_TYPE_BYTES, ferry::DataType::kBytes);
FERRY_SAME(FERRY_TYPE_INT8, ferry::DataType::kInt8);
FERRY_SAME(FERRY_TYPE_FP8_E4M3, ferry::DataType::kFp8E4m3);
FERRY_SAME(FERRY_TYPE_FP64, ferry::DataType::kFp64);
FERRY_SAME(FERRY_TYPE_INT16, ferry::DataType::kInt16);
FERRY_SAME(FERRY_TYPE_INT32, ferry::DataType::kInt32);
FERRY_SAME(FERRY_TYPE_INT64, ferry::DataType::kInt64);
FERRY_SAME(FERRY_TYPE_UINT16, ferry::DataType::kUint16);
FERRY_SAME(FERRY_TYPE_UINT32, ferry::DataType::kUint32);
FERRY_SAME(FERRY_TYPE_UINT64, ferry::DataType::kUint64);

FERRY_SAME(FERRY_REDUCE_SUM, ferry::ReduceOp::kSum);
FERRY_SAME(FERRY_REDUCE_AVG, ferry::ReduceOp::kAvg);
FERRY_SAME(FERRY_REDUCE_PRODUCT, ferry::ReduceOp::kProduct);
FERRY_SAME(FERRY_REDUCE_MIN, ferry::ReduceOp::kMin);
FERRY_SAME(FERRY_REDUCE_MAX, ferry::ReduceOp::kMax);
FERRY_SAME(FERRY_REDUCE_BAND, ferry::ReduceOp::kBand);
FERRY_SAME(FERRY_REDUCE_BOR, ferry::ReduceOp::kBor);
FERRY_SAME(FERRY_REDUCE_BXOR, ferry::ReduceOp::kBxor);

FERRY_SAME(FERRY_INDEX_INT32, ferry::IndexType::kInt32);
FERRY_SAME(FERRY_INDEX_INT64, ferry::IndexType::kInt64);

FERRY_SAME(FERRY_LAYOUT_RANK_MAJOR, ferry::Layout::kRankMajor);
FERRY_SAME(FERRY_LAYOUT_EXPERT_MAJOR, ferry::Layout::kExpertMajor);
FERRY_SAME(FERRY_LAYOUT_PADDED, ferry::Layout::kPadded);

FERRY_SAME(FERRY_WIRE_NONE, ferry::Wire::kNone);
FERRY_SAME(FERRY_WIRE_INT8, ferry::Wire::kInt8);
FERRY_SAME(FERRY_WIRE_INT8_STATIC, ferry::Wire::kInt8Static);
FERRY_SAME(FERRY_WIRE_FP8, ferry::Wire::kFp8);
FERRY_SAME(FERRY_WIRE_FP8_POW2, ferry::Wire::kFp8Pow2);
FERRY_SAME(FERRY_WIRE_FP8_UE8M0, ferry::Wire::kFp8Ue8m0);

FERRY_SAME(FERRY_COMBINE_WIRE_NONE, ferry::CombineWire::kNone);
FERRY_SAME(FERRY_COMBINE_WIRE_INT8_BLOCK8, ferry::CombineWire::kInt8Block8);
FERRY_SAME(FERRY_COMBINE_WIRE_INT8_BLOCK128, ferry::CombineWire::kInt8Block128);
FERRY_SAME(FERRY_COMBINE_WIRE_LOGFMT10, ferry::CombineWire::kLogfmt10);

FERRY_SAME(FERRY_ALGORITHM_AUTO, ferry::Algorithm::kAuto);
FERRY_SAME(FERRY_ALGORITHM_FULLMESH, ferry::Algorithm::kFullmesh);
FERRY_SAME(FERRY_ALGORITHM_HIERARCHICAL, ferry::Algorithm::kHierarchical);
FERRY_SAME(FERRY_ALGORITHM_ALLGATHER, ferry::Algorithm::kAllgather);

FERRY_SAME(FERRY_NODE_SUMS_ROW_TYPE, ferry::NodeSums::kRowType);
FERRY_SAME(FERRY_NODE_SUMS_FP32, ferry::NodeSums::kFp32);
FERRY_SAME(FERRY_NODE_SUMS_EXACT, ferry::NodeSums::kExact);

FERRY_SAME(FERRY_SCALE_ORDER_ROW_MAJOR, ferry::ScaleOrder::kRowMajor);
FERRY_SAME(FERRY_SCALE_ORDER_COLUMN_MAJOR, ferry::ScaleOrder::kColumnMajor);

FERRY_SAME(FERRY_SHARED_RULE_BY_RANK, ferry::SharedRule::kByRank);
FERRY_SAME(FERRY_SHARED_RULE_BY_TOKEN, ferry::SharedRule::kByToken);

FERRY_SAME(FERRY_REPLICA_CHOICE_BY_RANK, ferry::ReplicaChoice::kByRank);
FERRY_SAME(FERRY_REPLICA_CHOICE_BY_TOKEN, ferry::ReplicaChoice::kByToken);
FERRY_SAME(FERRY_REPLICA_CHOICE_BY_TABLE, ferry::ReplicaChoice::kByTable);

FERRY_SAME(FERRY_PARTIALS_NONE, ferry::Partials::kNone);
FERRY_SAME(FERRY_PARTIALS_PER_RANK, ferry::Partials::kPerRank);
