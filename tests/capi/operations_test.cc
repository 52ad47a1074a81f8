// Dispatch and combine through the C ABI: halves, rows, handles, and the newer fields. These tests
// show that the fields reach the engine; the tests of the engine compare the bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "seat.h"

namespace ferry::test {
namespace {

TEST(CapiOperations, HalvesAndTheirLimit) {
  on_ranks(2, [](ferry_group* group) {
    ferry_config config = small_config();
    config.depth = 2;
    Seat seat(group, config);
    const auto dispatch = seat.dispatch_args();
    std::uint64_t first = 0, second = 0, third = 9;
    expect_ok(ferry_dispatch_send(seat.exchange, &dispatch, &first));
    expect_ok(ferry_dispatch_send(seat.exchange, &dispatch, &second));
    EXPECT_TRUE(first != 0 && second != 0 && first != second);
    expect_error(ferry_dispatch_send(seat.exchange, &dispatch, &third), FERRY_INVALID_ARGUMENT,
                 {"2 operations", "depth is 2"});
    EXPECT_EQ(third, 0U);
    auto later = sized<ferry_received>();
    expect_ok(ferry_dispatch_recv(seat.exchange, second, &later));
    expect_ok(ferry_dispatch_recv(seat.exchange, first, &seat.received));
    expect_ok(ferry_received_release(&later));
    const auto combine = seat.combine_args();
    expect_ok(ferry_combine_send(seat.exchange, &combine, &first));
    expect_ok(ferry_combine_recv(seat.exchange, first));
    EXPECT_EQ(seat.out, seat.tokens);
  });
}

TEST(CapiOperations, PollTellsWhenAReceiveWouldNotWait) {
  on_ranks(2, [](ferry_group* group) {
    Seat seat(group);
    const auto dispatch = seat.dispatch_args();
    std::uint64_t operation = 0;
    expect_ok(ferry_dispatch_send(seat.exchange, &dispatch, &operation));
    while (!ferry_poll(seat.exchange, operation)) std::this_thread::yield();
    expect_ok(ferry_dispatch_recv(seat.exchange, operation, &seat.received));
    EXPECT_EQ(ferry_poll(seat.exchange, operation), 1);  // not in flight
  });
}

TEST(CapiOperations, ReceivedRowsAreFilledAndReleased) {
  on_ranks(2, [](ferry_group* group) {
    Seat seat(group);
    auto args = seat.dispatch_args();
    args.topk_weights = seat.weights.data();
    expect_ok(ferry_dispatch(seat.exchange, &args, &seat.received));
    const ferry_received& rows = seat.received;
    EXPECT_TRUE(rows.owner && rows.data && rows.sources && rows.weights && rows.handle);
    EXPECT_EQ(rows.topk_ids, nullptr);
    EXPECT_EQ(rows.scales, nullptr);
    EXPECT_EQ(rows.dtype, FERRY_TYPE_FP32);
    EXPECT_EQ(rows.hidden, kHidden);
    EXPECT_EQ(rows.num_rows, kTokens * kTopK);
    EXPECT_EQ(rows.weights[0], 0.5F);
    const int source = rows.sources[0], token = rows.sources[1];
    EXPECT_EQ(static_cast<const float*>(rows.data)[0],
              static_cast<float>(source * 1000 + token * 10));
    expect_ok(ferry_received_release(&seat.received));
    const auto empty = sized<ferry_received>();
    EXPECT_EQ(std::memcmp(&seat.received, &empty, sizeof empty), 0);
    expect_ok(ferry_received_release(&seat.received));  // a second release does nothing
  });
}

TEST(CapiOperations, CountsOfAHandle) {
  on_ranks(2, [](ferry_group* group) {
    Seat seat(group);
    expect_ok(seat.dispatch());
    auto counts = sized<ferry_counts>();
    expect_ok(ferry_handle_counts(seat.received.handle, &counts));
    EXPECT_EQ(counts.num_tokens, kTokens);
    EXPECT_EQ(counts.num_rows, seat.received.num_rows);
    EXPECT_EQ(counts.num_local_experts, ferry_exchange_num_local_experts(seat.exchange));
    ASSERT_EQ(counts.num_local_experts, 3);
    std::int64_t rows = 0;
    for (int e = 0; e < 3; ++e) {
      EXPECT_EQ(counts.expert_offsets[e], rows);
      EXPECT_EQ(counts.aligned_tokens_per_expert[e], counts.tokens_per_expert[e]);
      rows += counts.tokens_per_expert[e];
    }
    EXPECT_EQ(counts.expert_offsets[3], rows);
    ASSERT_EQ(counts.num_running_counts, 6);
    EXPECT_EQ(counts.running_counts[5], rows);
    EXPECT_EQ(counts.running_rows_per_rank, nullptr);
    EXPECT_EQ(counts.num_running_rows, 0);
  });
}

TEST(CapiOperations, RankMajorHasIdsAndRunningRows) {
  on_ranks(2, [](ferry_group* group) {
    ferry_config config = small_config();
    config.layout = FERRY_LAYOUT_RANK_MAJOR;
    Seat seat(group, config);
    expect_ok(seat.dispatch());
    ASSERT_NE(seat.received.topk_ids, nullptr);
    auto counts = sized<ferry_counts>();
    expect_ok(ferry_handle_counts(seat.received.handle, &counts));
    ASSERT_EQ(counts.num_running_rows, 2);
    EXPECT_EQ(counts.running_rows_per_rank[1], seat.received.num_rows);
    EXPECT_EQ(counts.expert_offsets, nullptr);
  });
}

TEST(CapiOperations, AKeptHandleOutlivesItsRows) {
  on_ranks(2, [](ferry_group* group) {
    Seat seat(group);
    expect_ok(seat.dispatch());
    ferry_handle* kept = nullptr;
    expect_ok(ferry_handle_keep(seat.received.handle, &kept));
    const auto* data = static_cast<const float*>(seat.received.data);
    const std::vector<float> rows(data, data + seat.received.num_rows * kHidden);
    auto combine = seat.combine_args();
    expect_ok(ferry_received_release(&seat.received));
    combine.handle = kept;
    combine.expert_rows = rows.data();
    expect_ok(ferry_combine(seat.exchange, &combine));
    EXPECT_EQ(seat.out, seat.tokens);

    auto cached = seat.dispatch_args();
    cached.topk_ids = nullptr;
    cached.cached = kept;
    expect_ok(ferry_dispatch(seat.exchange, &cached, &seat.received));
    EXPECT_EQ(std::memcmp(seat.received.data, rows.data(), rows.size() * sizeof(float)), 0);
    ferry_handle_free(kept);
    expect_ok(seat.combine());
  });
}

TEST(CapiOperations, CachedDispatchIntoTheRowsThatLendTheHandle) {
  on_ranks(2, [](ferry_group* group) {
    Seat seat(group);
    expect_ok(seat.dispatch());
    auto cached = seat.dispatch_args();
    cached.topk_ids = nullptr;
    cached.cached = seat.received.handle;
    expect_ok(ferry_dispatch(seat.exchange, &cached, &seat.received));
    expect_ok(seat.combine());
    EXPECT_EQ(seat.out, seat.tokens);
  });
}

TEST(CapiOperations, HandleOfAnotherExchange) {
  on_ranks(2, [](ferry_group* group) {
    Seat seat(group), other(group);
    expect_ok(seat.dispatch());
    expect_ok(other.dispatch());
    auto combine = seat.combine_args();
    combine.handle = other.received.handle;
    expect_error(ferry_combine(seat.exchange, &combine), FERRY_INVALID_ARGUMENT, {"exchange"});
    seat.expect_works();
  });
}

TEST(CapiOperations, OutputsInTheWindow) {
  on_ranks(2, [](ferry_group* group) {
    Seat seat(group);
    expect_ok(seat.dispatch());
    auto rows = sized<ferry_output_rows>();
    expect_error(ferry_allocate_outputs(seat.exchange, -1, kHidden, FERRY_TYPE_FP32, &rows),
                 FERRY_INVALID_ARGUMENT, {"-1"});
    EXPECT_EQ(rows.owner, nullptr);
    expect_ok(ferry_allocate_outputs(seat.exchange, seat.received.num_rows, kHidden,
                                     FERRY_TYPE_FP32, &rows));
    EXPECT_EQ(rows.num_rows, seat.received.num_rows);
    EXPECT_EQ(rows.hidden, kHidden);
    std::memcpy(rows.data, seat.received.data, rows.num_rows * kHidden * sizeof(float));
    auto combine = seat.combine_args();
    combine.expert_rows = rows.data;
    std::int32_t may = 0;
    expect_ok(ferry_may_write(seat.exchange, rows.data, &may));
    EXPECT_EQ(may, 1);
    std::uint64_t operation = 0;
    expect_ok(ferry_combine_send(seat.exchange, &combine, &operation));
    expect_ok(ferry_may_write(seat.exchange, rows.data, &may));
    EXPECT_EQ(may, 0);  // this rank has not read them
    expect_ok(ferry_combine_recv(seat.exchange, operation));
    while (!may) expect_ok(ferry_may_write(seat.exchange, rows.data, &may));
    EXPECT_EQ(seat.out, seat.tokens);
    auto stats = sized<ferry_stats>();
    expect_ok(ferry_exchange_stats(seat.exchange, &stats));
    EXPECT_EQ(stats.bytes_copied, 0U);
    const void* released = rows.data;
    expect_ok(ferry_output_rows_release(&rows));
    EXPECT_EQ(rows.data, nullptr);
    expect_error(ferry_may_write(seat.exchange, released, &may), FERRY_INVALID_ARGUMENT, {"view"});
    EXPECT_EQ(may, 0);
  });
}

TEST(CapiOperations, TooManyOutputs) {
  on_ranks(1, [](ferry_group* group) {
    Seat seat(group);
    std::vector<ferry_output_rows> all(20, sized<ferry_output_rows>());
    ferry_code code = FERRY_OK;
    for (ferry_output_rows& rows : all) {
      code = ferry_allocate_outputs(seat.exchange, 4, kHidden, FERRY_TYPE_BF16, &rows);
      if (code != FERRY_OK) break;
    }
    expect_error(code, FERRY_CAPACITY, {"the limit is"});
    for (ferry_output_rows& rows : all) expect_ok(ferry_output_rows_release(&rows));
    seat.expect_works();
  });
}

TEST(CapiOperations, WhatAnExchangeSaysOfItself) {
  on_ranks(2, [](ferry_group* group) {
    const std::vector<std::int32_t> owners = {1, 1, 0, 0, 1, 1};
    ferry_config config = small_config();
    config.expert_rank = owners.data();
    Seat seat(group, config);
    EXPECT_EQ(ferry_exchange_num_local_experts(seat.exchange), ferry_group_rank(group) ? 4 : 2);
    auto seen = sized<ferry_config>();
    expect_ok(ferry_exchange_config(seat.exchange, &seen));
    EXPECT_EQ(seen.hidden, kHidden);
    EXPECT_EQ(seen.depth, 2);
    EXPECT_EQ(seen.max_output_row_bytes, kHidden * 4);
    EXPECT_TRUE(std::equal(owners.begin(), owners.end(), seen.expert_rank));
    auto expected = sized<ferry_window>(), window = sized<ferry_window>();
    expect_ok(ferry_window_bytes(&config, 2, &expected));
    expect_ok(ferry_exchange_window_bytes(seat.exchange, &window));
    EXPECT_EQ(window.worst_bytes, expected.worst_bytes);
    EXPECT_GT(window.expected_bytes, 0U);
    const std::int32_t first = 0;
    config.expert_rank = nullptr;
    config.expert_ranks = &first, config.num_expert_ranks = 1;
    expect_ok(ferry_rank_window_bytes(&config, 2, 1, &expected));
    EXPECT_EQ(expected.worst_bytes, 0U);
    EXPECT_GT(expected.expected_bytes, 0U);
    expect_error(ferry_rank_window_bytes(&config, 2, 2, &expected), FERRY_INVALID_ARGUMENT,
                 {"rank is 2", "0 to 1"});
    config.num_expert_ranks = -1;
    expect_error(ferry_window_bytes(&config, 2, &expected), FERRY_INVALID_ARGUMENT,
                 {"expert_ranks"});

    seat.expect_works();
    auto stats = sized<ferry_stats>();
    expect_ok(ferry_exchange_stats(seat.exchange, &stats));
    EXPECT_EQ(stats.dispatches, 1U);
    EXPECT_EQ(stats.combines, 1U);
    EXPECT_EQ(stats.rows_sent, static_cast<std::uint64_t>(kTokens * kTopK));
    auto times = sized<ferry_times>();
    auto span = sized<ferry_span>();
    expect_ok(ferry_exchange_times(seat.exchange, FERRY_OPERATION_DISPATCH, &times));
    EXPECT_EQ(times.num_sources, 2);
    ASSERT_GT(times.num_spans, 0);
    expect_ok(ferry_exchange_span(seat.exchange, FERRY_OPERATION_DISPATCH, 0, &span));
    EXPECT_STREQ(span.phase, "count");
    EXPECT_GE(span.end_ns, span.begin_ns);
    expect_ok(ferry_exchange_times(seat.exchange, FERRY_OPERATION_COMBINE, &times));
    EXPECT_GT(times.num_spans, 0);
  });
}

TEST(CapiOperations, CombineFromWhatDispatchWasGiven) {
  on_ranks(2, [](ferry_group* group) {
    Seat seat(group);
    expect_ok(seat.dispatch());
    const auto dispatched = seat.dispatch_args();
    auto combine = seat.combine_args();
    combine.handle = nullptr;
    combine.dispatched = &dispatched;
    expect_ok(ferry_combine(seat.exchange, &combine));
    EXPECT_EQ(seat.out, seat.tokens);
  });
}

TEST(CapiOperations, QuantisedRowsBringTheirScales) {
  on_ranks(2, [](ferry_group* group) {
    ferry_config config = small_config();
    config.wire = FERRY_WIRE_INT8;
    Seat seat(group, config);
    expect_ok(seat.dispatch());
    const ferry_received& rows = seat.received;
    EXPECT_EQ(rows.dtype, FERRY_TYPE_INT8);
    ASSERT_NE(rows.scales, nullptr);
    EXPECT_EQ(rows.scale_columns, 1);
    EXPECT_EQ(rows.scale_element_bytes, 4);
    for (std::int64_t row = 0; row < rows.num_rows; ++row) {
      const auto* values = static_cast<const std::int8_t*>(rows.data) + row * kHidden;
      float scale;
      std::memcpy(&scale, static_cast<const char*>(rows.scales) + row * rows.scale_row_stride, 4);
      const int source = rows.sources[3 * row], token = rows.sources[3 * row + 1];
      EXPECT_NEAR(static_cast<float>(values[1]) * scale,
                  static_cast<float>(source * 1000 + token * 10 + 1), scale);
    }
  });
}

// Copy and zero experts, a shared output of the caller, residual and norm: one combine in halves,
// whose receive half reads the arguments of the dispatch.
TEST(CapiOperations, SpecialExpertsAndNorm) {
  on_ranks(2, [](ferry_group* group) {
    ferry_config config = small_config();
    config.num_zero_experts = 1;
    config.num_copy_experts = 1;
    Seat seat(group, config);
    for (int t = 0; t < kTokens; ++t)
      seat.ids[t * 2] = kExperts, seat.ids[t * 2 + 1] = kExperts + 1;
    expect_ok(seat.dispatch());
    EXPECT_EQ(seat.received.num_rows, 0);
    const std::vector<float> ones(kTokens * kHidden, 1.0F), twos(kTokens * kHidden, 2.0F);
    std::vector<float> y(kTokens * kHidden), rstd(kTokens);
    auto dispatched = seat.dispatch_args();
    auto combine = seat.combine_args();
    combine.hidden = kHidden;
    combine.dtype = FERRY_TYPE_FP32;
    combine.dispatched = &dispatched;
    combine.shared_output = ones.data();
    combine.residual = twos.data();
    combine.gamma = ones.data();
    combine.y = y.data();
    combine.rstd = rstd.data();
    std::uint64_t operation = 0;
    expect_ok(ferry_combine_send(seat.exchange, &combine, &operation));
    std::memset(&dispatched, 0xff, sizeof dispatched);  // the caller may reuse the structs
    std::memset(&combine, 0xff, sizeof combine);
    expect_ok(ferry_combine_recv(seat.exchange, operation));
    for (std::size_t i = 0; i < seat.out.size(); ++i) {
      EXPECT_EQ(seat.out[i], seat.tokens[i] * 0.5F + 1.0F + 2.0F);
      EXPECT_NEAR(y[i], seat.out[i] * rstd[i / kHidden], 1e-5F);
    }
  });
}

TEST(CapiOperations, ActiveRanksReplicasAndSharedExperts) {
  on_ranks(3, [](ferry_group* group) {
    const std::vector<std::int64_t> offsets = {0, 2, 3, 4, 5, 6};
    const std::vector<std::int32_t> instances = {0, 5, 1, 2, 3, 4};
    ferry_config config = small_config();
    config.num_logical_experts = 5;
    config.replica_offsets = offsets.data();
    config.replica_instances = instances.data();
    config.num_shared_experts = 1;
    config.num_shared_ranks = 1;
    Seat seat(group, config);
    auto seen = sized<ferry_config>();
    expect_ok(ferry_exchange_config(seat.exchange, &seen));
    ASSERT_EQ(seen.num_logical_experts, 5);
    EXPECT_TRUE(std::equal(offsets.begin(), offsets.end(), seen.replica_offsets));
    EXPECT_TRUE(std::equal(instances.begin(), instances.end(), seen.replica_instances));
    for (std::int64_t& id : seat.ids) id %= 5;
    const std::vector<std::int32_t> active = {0, 2};
    auto dispatch = seat.dispatch_args();
    dispatch.active_ranks = active.data();
    dispatch.num_active_ranks = 2;
    expect_ok(ferry_dispatch(seat.exchange, &dispatch, &seat.received));
    // Rank 0 has the shared expert: a row for each token of the two ranks. Rank 1 does not take
    // part.
    const std::int64_t expected = ferry_group_rank(group) == 0 ? 2 * kTokens : 0;
    if (ferry_group_rank(group) != 2) {
      EXPECT_EQ(seat.received.num_rows, expected);
    }
  });
}

TEST(CapiOperations, ABadStructDoesNotWaitForRanksThatAreLeftOut) {
  on_ranks(3, [](ferry_group* group) {
    Seat seat(group);
    const std::vector<std::int32_t> active = {0, 1};
    auto dispatch = seat.dispatch_args();
    dispatch.active_ranks = active.data();
    dispatch.num_active_ranks = 2;
    const int rank = ferry_group_rank(group);
    for (std::int64_t& id : seat.ids) id %= 4;  // experts of ranks 0 and 1
    if (rank < 2) {
      auto given = dispatch;
      if (rank == 0) given.struct_size = 8;
      expect_error(ferry_dispatch(seat.exchange, &given, &seat.received),
                   rank == 0 ? FERRY_INVALID_ARGUMENT : FERRY_PEER_REJECTED, {"struct_size"});
      expect_ok(ferry_dispatch(seat.exchange, &dispatch, &seat.received));
    }
    expect_ok(ferry_group_barrier(group));
  });
}

}  // namespace
}  // namespace ferry::test
