// Every field of the C structs is converted to its C++ member, and every member to its field. No
// two fields of a struct have the same value here, so that the test finds a field in the wrong
// place.
#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "capi/convert.h"
#include "seat.h"

namespace ferry::test {
namespace {

// An address that differs for each field; no code reads the memory.
template <typename T = void>
T* mark(std::uintptr_t number) {
  return reinterpret_cast<T*>(number * 8);
}

struct FullConfig {
  std::vector<std::int32_t> expert_rank = {1, 0, 1, 0};
  std::vector<std::int32_t> token_ranks = {4, 5}, expert_ranks = {1, 0, 6};
  std::vector<std::int64_t> offsets = {0, 2, 2, 5};
  std::vector<std::int32_t> instances = {3, 1, 0, 2, 1};
  ferry_config config = {.struct_size = sizeof(ferry_config),
                         .version = FERRY_ABI_VERSION,
                         .max_tokens = 101,
                         .hidden = 102,
                         .num_experts = 4,
                         .top_k = 103,
                         .dtype = FERRY_TYPE_FP16,
                         .layout = FERRY_LAYOUT_PADDED,
                         .expert_alignment = 104,
                         .row_capacity = 105,
                         .expert_capacity = 106,
                         .max_output_row_bytes = 107,
                         .expert_rank = expert_rank.data(),
                         .zero_gaps = 1,
                         .depth = 108,
                         .workers = 109,
                         .tp_size = 110,
                         .wire = FERRY_WIRE_FP8_UE8M0,
                         .combine_wire = FERRY_COMBINE_WIRE_LOGFMT10,
                         .scale_order = FERRY_SCALE_ORDER_COLUMN_MAJOR,
                         .shared_rule = FERRY_SHARED_RULE_BY_TOKEN,
                         .scale_bytes = 111,
                         .num_shared_experts = 112,
                         .num_shared_ranks = 113,
                         .num_zero_experts = 114,
                         .num_copy_experts = 115,
                         .num_constant_experts = 116,
                         .replica_choice = FERRY_REPLICA_CHOICE_BY_TABLE,
                         .num_logical_experts = 3,
                         .replica_offsets = offsets.data(),
                         .replica_instances = instances.data(),
                         .algorithm = FERRY_ALGORITHM_ALLGATHER,
                         .node_sums = FERRY_NODE_SUMS_EXACT,
                         .token_ranks = token_ranks.data(),
                         .expert_ranks = expert_ranks.data(),
                         .num_token_ranks = 2,
                         .num_expert_ranks = 3};
};

TEST(CapiConvert, Config) {
  const FullConfig full;
  const ExchangeConfig seen = capi::to_config(&full.config);
  EXPECT_EQ(seen.max_tokens, 101);
  EXPECT_EQ(seen.hidden, 102);
  EXPECT_EQ(seen.num_experts, 4);
  EXPECT_EQ(seen.top_k, 103);
  EXPECT_EQ(seen.dtype, DataType::kFp16);
  EXPECT_EQ(seen.layout, Layout::kPadded);
  EXPECT_EQ(seen.expert_alignment, 104);
  EXPECT_TRUE(seen.zero_gaps);
  EXPECT_EQ(seen.row_capacity, 105);
  EXPECT_EQ(seen.expert_capacity, 106);
  EXPECT_EQ(seen.max_output_row_bytes, 107);
  EXPECT_EQ(seen.expert_rank, full.expert_rank);
  EXPECT_EQ(seen.depth, 108);
  EXPECT_EQ(seen.workers, 109);
  EXPECT_EQ(seen.tp_size, 110);
  EXPECT_EQ(seen.wire, Wire::kFp8Ue8m0);
  EXPECT_EQ(seen.combine_wire, CombineWire::kLogfmt10);
  EXPECT_EQ(seen.scale_order, ScaleOrder::kColumnMajor);
  EXPECT_EQ(seen.scale_bytes, 111);
  EXPECT_EQ(seen.shared.num_experts, 112);
  EXPECT_EQ(seen.shared.num_ranks, 113);
  EXPECT_EQ(seen.shared.rule, SharedRule::kByToken);
  EXPECT_EQ(seen.special.zero, 114);
  EXPECT_EQ(seen.special.copy, 115);
  EXPECT_EQ(seen.special.constant, 116);
  EXPECT_EQ(seen.replicas.choice, ReplicaChoice::kByTable);
  const std::vector<std::vector<int>> instances = {{3, 1}, {}, {0, 2, 1}};
  EXPECT_EQ(seen.replicas.instances, instances);
  EXPECT_EQ(seen.algorithm, Algorithm::kAllgather);
  EXPECT_EQ(seen.node_sums, NodeSums::kExact);
  EXPECT_EQ(seen.token_ranks, full.token_ranks);
  EXPECT_EQ(seen.expert_ranks, full.expert_ranks);
}

TEST(CapiConvert, ConfigThereAndBack) {
  const FullConfig full;
  const ExchangeConfig there = capi::to_config(&full.config);
  const capi::FlatReplicas flat(there.replicas);
  ferry_config back = capi::from_config(there, flat);
  EXPECT_EQ(flat.offsets, full.offsets);
  EXPECT_EQ(flat.instances, full.instances);
  EXPECT_TRUE(std::equal(back.expert_rank, back.expert_rank + 4, full.expert_rank.begin()));
  EXPECT_TRUE(std::equal(back.token_ranks, back.token_ranks + 2, full.token_ranks.begin()));
  EXPECT_TRUE(std::equal(back.expert_ranks, back.expert_ranks + 3, full.expert_ranks.begin()));
  back.struct_size = full.config.struct_size;
  back.version = full.config.version;
  back.expert_rank = full.config.expert_rank;
  back.token_ranks = full.config.token_ranks;
  back.expert_ranks = full.config.expert_ranks;
  back.replica_offsets = full.config.replica_offsets;
  back.replica_instances = full.config.replica_instances;
  EXPECT_EQ(std::memcmp(&back, &full.config, sizeof back), 0);
}

TEST(CapiConvert, ZeroIsTheDefault) {
  const auto zero = sized<ferry_config>();
  const ExchangeConfig seen = capi::to_config(&zero), expected;
  EXPECT_EQ(seen.expert_alignment, expected.expert_alignment);
  EXPECT_EQ(seen.depth, expected.depth);
  EXPECT_EQ(seen.workers, expected.workers);
  EXPECT_EQ(seen.tp_size, expected.tp_size);
  EXPECT_EQ(capi::to_group_settings(nullptr).options.deadline, GroupOptions{}.deadline);
  const auto options = sized<ferry_group_options>();
  EXPECT_EQ(capi::to_group_settings(&options).options.deadline, GroupOptions{}.deadline);
  const auto combine = sized<ferry_combine_args>();
  DispatchArgs dispatched;
  EXPECT_EQ(capi::to_combine_args(&combine, dispatched).norm.epsilon, ResidualNorm{}.epsilon);
}

TEST(CapiConvert, GroupOptions) {
  auto options = sized<ferry_group_options>();
  options.deadline_ns = 17;
  options.name = "blue";
  const capi::GroupSettings seen = capi::to_group_settings(&options);
  EXPECT_EQ(seen.options.deadline.count(), 17);
  EXPECT_EQ(seen.options.name, "blue");
  EXPECT_FALSE(seen.options.interrupted);
}

TEST(CapiConvert, Interrupted) {
  int stop = 0;
  auto options = sized<ferry_group_options>();
  options.interrupted = [](void* context) { return *static_cast<int*>(context); };
  options.interrupted_context = &stop;
  const capi::GroupSettings seen = capi::to_group_settings(&options);
  EXPECT_FALSE(seen.options.interrupted());
  stop = -1;  // not 0
  EXPECT_TRUE(seen.options.interrupted());
  options.struct_size = offsetof(ferry_group_options, interrupted);  // of an older caller
  EXPECT_FALSE(capi::to_group_settings(&options).options.interrupted);
}

// A value that no enumeration has must not become an enumerator.
TEST(CapiConvert, EnumeratorsThatDoNotExistStayUnknown) {
  for (const std::int32_t value : {-1, 256, 257, 0x10000, 255}) {
    FullConfig full;
    full.config.dtype = full.config.layout = full.config.wire = value;
    const ExchangeConfig seen = capi::to_config(&full.config);
    EXPECT_EQ(static_cast<int>(seen.dtype), 255);
    EXPECT_EQ(static_cast<int>(seen.layout), 255);
    EXPECT_EQ(static_cast<int>(seen.wire), 255);
    EXPECT_STREQ(ferry_data_type_name(value), "unknown");
    EXPECT_EQ(ferry_element_bytes(value), 0U);
  }
}

TEST(CapiConvert, DispatchArgs) {
  const Handle handle(std::shared_ptr<const internal::Route>(
      std::shared_ptr<const internal::Route>(), mark<const internal::Route>(99)));
  const ferry_handle cached = {capi::Allocator(), handle};
  const std::vector<std::int32_t> active_ranks = {2, 0};
  const ferry_dispatch_args args = {.struct_size = sizeof(ferry_dispatch_args),
                                    .version = FERRY_ABI_VERSION,
                                    .tokens = mark(1),
                                    .num_tokens = 2,
                                    .hidden = 3,
                                    .tokens_pitch_bytes = 4,
                                    .topk_ids = mark(5),
                                    .dtype = FERRY_TYPE_FP32,
                                    .topk_ids_type = FERRY_INDEX_INT32,
                                    .top_k = 7,
                                    .num_scale_rows = 8,
                                    .topk_weights = mark<float>(9),
                                    .token_mask = mark<std::uint8_t>(10),
                                    .topk_mask = mark<std::uint8_t>(11),
                                    .cached = &cached,
                                    .deadline_ns = 12,
                                    .scales = mark<float>(13),
                                    .num_scale_channels = 14,
                                    .token_scales = mark(15),
                                    .replica_table = mark<std::int32_t>(16),
                                    .active_ranks = active_ranks.data(),
                                    .num_active_ranks = 2};
  const DispatchArgs seen = capi::to_dispatch_args(&args);
  EXPECT_EQ(seen.tokens.data, args.tokens);
  EXPECT_EQ(seen.tokens.num_rows, 2);
  EXPECT_EQ(seen.tokens.hidden, 3);
  EXPECT_EQ(seen.tokens.dtype, DataType::kFp32);
  EXPECT_EQ(seen.tokens.pitch_bytes, 4);
  EXPECT_EQ(seen.topk_ids.data, args.topk_ids);
  EXPECT_EQ(seen.topk_ids.num_tokens, 2);
  EXPECT_EQ(seen.topk_ids.top_k, 7);
  EXPECT_EQ(seen.topk_ids.type, IndexType::kInt32);
  EXPECT_EQ(seen.topk_weights, args.topk_weights);
  EXPECT_EQ(seen.token_mask, args.token_mask);
  EXPECT_EQ(seen.topk_mask, args.topk_mask);
  EXPECT_EQ(seen.cached.route(), handle.route());
  EXPECT_EQ(seen.deadline.count(), 12);
  EXPECT_EQ(seen.scales.data, args.scales);
  EXPECT_EQ(seen.scales.num_rows, 8);
  EXPECT_EQ(seen.scales.num_channels, 14);
  EXPECT_EQ(seen.token_scales, args.token_scales);
  EXPECT_EQ(seen.replica_table, args.replica_table);
  EXPECT_EQ(seen.active_ranks.data(), active_ranks.data());
  EXPECT_EQ(seen.active_ranks.size(), 2U);
}

TEST(CapiConvert, CombineArgs) {
  const Handle route(std::shared_ptr<const internal::Route>(
      std::shared_ptr<const internal::Route>(), mark<const internal::Route>(98)));
  const ferry_handle handle = {capi::Allocator(), route};
  auto dispatch = sized<ferry_dispatch_args>();
  dispatch.tokens = mark(97);
  const ferry_combine_args args = {.struct_size = sizeof(ferry_combine_args),
                                   .version = FERRY_ABI_VERSION,
                                   .handle = &handle,
                                   .expert_rows = mark(1),
                                   .num_rows = 2,
                                   .hidden = 3,
                                   .rows_pitch_bytes = 4,
                                   .dtype = FERRY_TYPE_FP16,
                                   .out_dtype = FERRY_TYPE_FP32,
                                   .topk_weights = mark<float>(5),
                                   .bias = {mark(6), mark(7)},
                                   .row_weights = mark<float>(8),
                                   .out = mark(9),
                                   .out_pitch_bytes = 10,
                                   .out_topk_weights = mark<float>(11),
                                   .deadline_ns = 12,
                                   .dispatched = &dispatch,
                                   .alpha1 = mark(13),
                                   .alpha2 = mark(14),
                                   .constants = mark(15),
                                   .shared_output = mark(16),
                                   .residual = mark(17),
                                   .gamma = mark(18),
                                   .y = mark(19),
                                   .rstd = mark<float>(20),
                                   .epsilon = 0.25,
                                   .partials = FERRY_PARTIALS_PER_RANK,
                                   .copy_rows = 1};
  DispatchArgs kept;
  const CombineArgs seen = capi::to_combine_args(&args, kept);
  EXPECT_EQ(seen.handle.route(), route.route());
  EXPECT_EQ(seen.expert_rows.data, args.expert_rows);
  EXPECT_EQ(seen.expert_rows.num_rows, 2);
  EXPECT_EQ(seen.expert_rows.hidden, 3);
  EXPECT_EQ(seen.expert_rows.dtype, DataType::kFp16);
  EXPECT_EQ(seen.expert_rows.pitch_bytes, 4);
  EXPECT_EQ(seen.topk_weights, args.topk_weights);
  EXPECT_EQ(seen.bias[0], args.bias[0]);
  EXPECT_EQ(seen.bias[1], args.bias[1]);
  EXPECT_EQ(seen.row_weights, args.row_weights);
  EXPECT_EQ(seen.out, args.out);
  EXPECT_EQ(seen.out_dtype, DataType::kFp32);
  EXPECT_EQ(seen.out_pitch_bytes, 10);
  EXPECT_EQ(seen.out_topk_weights, args.out_topk_weights);
  EXPECT_EQ(seen.deadline.count(), 12);
  ASSERT_EQ(seen.dispatched, &kept);
  EXPECT_EQ(kept.tokens.data, dispatch.tokens);
  EXPECT_EQ(seen.constants.alpha1, args.alpha1);
  EXPECT_EQ(seen.constants.alpha2, args.alpha2);
  EXPECT_EQ(seen.constants.v, args.constants);
  EXPECT_EQ(seen.shared_output, args.shared_output);
  EXPECT_EQ(seen.norm.residual, args.residual);
  EXPECT_EQ(seen.norm.gamma, args.gamma);
  EXPECT_EQ(seen.norm.epsilon, 0.25F);
  EXPECT_EQ(seen.norm.y, args.y);
  EXPECT_EQ(seen.norm.rstd, args.rstd);
  EXPECT_EQ(seen.partials, Partials::kPerRank);
  EXPECT_FALSE(seen.in_place);
}

TEST(CapiConvert, Received) {
  const std::vector<std::int32_t> sources = {1, 2, 3}, ids = {4};
  const std::vector<float> weights = {5};
  capi::ReceivedOwner owner = {capi::Allocator()};
  Received& rows = owner.received;
  rows.data = mark(1);
  rows.num_rows = 2;
  rows.hidden = 3;
  rows.dtype = DataType::kInt8;
  rows.sources = sources;
  rows.weights = weights;
  rows.topk_ids = ids;
  rows.scales = {mark(4), 5, 6, 7, 8, 9};
  const ferry_received seen = capi::from_received(owner);
  EXPECT_EQ(seen.owner, &owner);
  EXPECT_EQ(seen.data, rows.data);
  EXPECT_EQ(seen.num_rows, 2);
  EXPECT_EQ(seen.hidden, 3);
  EXPECT_EQ(seen.dtype, FERRY_TYPE_INT8);
  EXPECT_EQ(seen.sources, sources.data());
  EXPECT_EQ(seen.weights, weights.data());
  EXPECT_EQ(seen.topk_ids, ids.data());
  EXPECT_EQ(seen.handle, &owner.handle);
  EXPECT_EQ(seen.scales, rows.scales.data);
  EXPECT_EQ(seen.scale_columns, 5);
  EXPECT_EQ(seen.scale_element_bytes, 6);
  EXPECT_EQ(seen.scale_row_stride, 7);
  EXPECT_EQ(seen.scale_column_stride, 8);
  EXPECT_EQ(seen.scale_section_stride, 9);
}

TEST(CapiConvert, StatsTimesAndWindow) {
  const ferry_stats stats = capi::from_stats({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  EXPECT_EQ(stats.dispatches, 1U);
  EXPECT_EQ(stats.combines, 2U);
  EXPECT_EQ(stats.rows_sent, 3U);
  EXPECT_EQ(stats.rows_received, 4U);
  EXPECT_EQ(stats.bytes_sent, 5U);
  EXPECT_EQ(stats.bytes_pulled, 6U);
  EXPECT_EQ(stats.bytes_copied, 7U);
  EXPECT_EQ(stats.window_growths, 8U);
  EXPECT_EQ(stats.link_row_bytes, 9U);
  EXPECT_EQ(stats.link_bytes, 10U);
  const OperationTimes times = {{{"count", 1, 2}, {"counts", 3, 4}}, {5, 6, 7}};
  const ferry_times seen = capi::from_times(times);
  EXPECT_EQ(seen.num_spans, 2);
  EXPECT_EQ(seen.num_sources, 3);
  EXPECT_EQ(seen.wait_ns, times.wait_ns.data());
  const ferry_span span = capi::from_span(times.spans[1]);
  EXPECT_STREQ(span.phase, "counts");
  EXPECT_EQ(span.begin_ns, 3);
  EXPECT_EQ(span.end_ns, 4);
  const ferry_window window = capi::from_window_bytes({9, 10});
  EXPECT_EQ(window.expected_bytes, 9U);
  EXPECT_EQ(window.worst_bytes, 10U);
}

TEST(CapiConvert, ArraysThatCannotBeRead) {
  const auto expect_refused = [](const auto& given, const auto& convert, const std::string& part) {
    try {
      std::ignore = convert(&given);
      ADD_FAILURE() << "no error with " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const auto refused_offsets = [&](std::vector<std::int64_t> offsets, const std::string& part) {
    FullConfig full;
    full.config.replica_offsets = offsets.data();
    expect_refused(full.config, capi::to_config, part);
  };
  refused_offsets({1, 2, 2, 5}, "replica_offsets[0] is 1");
  refused_offsets({0, 2, 1, 5}, "[2] is 1");
  refused_offsets({0, -2, 1, 5}, "[1] is -2");
  const FullConfig full;
  ferry_config config = full.config;
  config.replica_offsets = nullptr;
  expect_refused(config, capi::to_config, "replica_offsets is NULL of 3");
  config = full.config;
  config.replica_instances = nullptr;
  expect_refused(config, capi::to_config, "replica_instances is NULL of 2");
  config = full.config;
  config.num_logical_experts = -1;
  expect_refused(config, capi::to_config, "-1");
  auto dispatch = sized<ferry_dispatch_args>();
  dispatch.num_active_ranks = 3;
  expect_refused(dispatch, capi::to_dispatch_args, "active_ranks is NULL of 3");
}

}  // namespace
}  // namespace ferry::test
