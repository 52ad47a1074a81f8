// struct_size and version: older callers work, and newer ones too as long as they use no new field.
// An impossible value is refused with a message that names it.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "capi/boundary.h"
#include "capi/convert.h"
#include "seat.h"

namespace ferry::test {
namespace {

// A struct of a newer header: `tail` has fields that this library does not know.
template <typename Struct>
struct Newer {
  Struct known = sized<Struct>();
  std::uint64_t tail[2] = {};
  Newer() { known.struct_size = sizeof(Newer); }
};

TEST(CapiStructs, HeaderThatCannotBe) {
  struct Bad {
    std::uint32_t struct_size, version;
    std::vector<std::string> parts;
  };
  const std::vector<Bad> all = {
      {0, 1, {"ferry_window", "struct_size is 0", "FERRY_INIT"}},
      {8, 1, {"struct_size is 8"}},
      {21, 1, {"struct_size is 21", "multiple of 8"}},
      {4104, 1, {"struct_size is 4104", "4096"}},
      {0xffffffff, 1, {"4294967295"}},
      {sizeof(ferry_window), 0, {"version is 0", "has 1"}},
      {sizeof(ferry_window), 2, {"version is 2", "has 1"}},
  };
  const ferry_config config = small_config();
  for (const Bad& bad : all) {
    ferry_window window = {bad.struct_size, bad.version, 7, 7};
    expect_error(ferry_window_bytes(&config, 2, &window), FERRY_INVALID_ARGUMENT, bad.parts);
    EXPECT_EQ(window.expected_bytes, 7U);
  }
}

// Passes each struct that a function reads or fills with a header of zeros.
TEST(CapiStructs, EveryStructIsChecked) {
  on_ranks(1, [](ferry_group* group) {
    Seat seat(group);
    expect_ok(seat.dispatch());
    const auto refused = [](auto call, const std::string& name) {
      expect_error(call(), FERRY_INVALID_ARGUMENT, {name + ": struct_size is 0"});
    };
    ferry_group* other = nullptr;
    ferry_exchange* exchange = nullptr;
    const ferry_config config = {};
    const ferry_allocator allocator = {};
    const ferry_all_gather gather = {};
    ferry_group_options options = {};
    refused([&] { return ferry_group_threads(1, &options, &other); }, "ferry_group_options");
    options = sized<ferry_group_options>();
    options.allocator = &allocator;
    refused([&] { return ferry_group_threads(1, &options, &other); }, "ferry_allocator");
    refused([&] { return ferry_group_from_all_gather(0, 1, &gather, nullptr, &other); },
            "ferry_all_gather");
    refused([&] { return ferry_exchange_create(group, &config, &exchange); }, "ferry_config");
    const ferry_dispatch_args dispatch = {};
    ferry_combine_args combine = {};
    refused([&] { return ferry_dispatch(seat.exchange, &dispatch, &seat.received); },
            "ferry_dispatch_args");
    refused([&] { return ferry_combine(seat.exchange, &combine); }, "ferry_combine_args");
    combine = seat.combine_args();
    combine.dispatched = &dispatch;
    refused([&] { return ferry_combine(seat.exchange, &combine); }, "ferry_dispatch_args");
    ferry_received received = {};
    ferry_output_rows rows = {};
    refused([&] { return ferry_received_release(&received); }, "ferry_received");
    refused([&] { return ferry_output_rows_release(&rows); }, "ferry_output_rows");
    seat.expect_works();
  });
}

TEST(CapiStructs, EveryAnswerIsChecked) {
  on_ranks(1, [](ferry_group* group) {
    Seat seat(group);
    expect_ok(seat.dispatch());
    const auto refused = [](auto call, const std::string& name) {
      expect_error(call(), FERRY_INVALID_ARGUMENT, {name + ": struct_size is 0"});
    };
    ferry_counts counts = {};
    ferry_stats stats = {};
    ferry_times times = {};
    ferry_span span = {};
    ferry_config config = {};
    ferry_window window = {};
    refused([&] { return ferry_handle_counts(seat.received.handle, &counts); }, "ferry_counts");
    refused([&] { return ferry_exchange_stats(seat.exchange, &stats); }, "ferry_stats");
    refused([&] { return ferry_exchange_times(seat.exchange, 0, &times); }, "ferry_times");
    refused([&] { return ferry_exchange_span(seat.exchange, 0, 0, &span); }, "ferry_span");
    refused([&] { return ferry_exchange_config(seat.exchange, &config); }, "ferry_config");
    refused([&] { return ferry_exchange_window_bytes(seat.exchange, &window); }, "ferry_window");
  });
}

// A caller that was compiled when a struct was shorter: the bytes after the struct are not read.
TEST(CapiStructs, FieldsThatAnOlderCallerLacksAreZero) {
  ferry_config config;
  std::memset(&config, 0x5a, sizeof config);
  config.struct_size = offsetof(ferry_config, wire);
  config.version = FERRY_ABI_VERSION;
  config.expert_rank = nullptr;
  const ExchangeConfig seen = capi::to_config(&config);
  EXPECT_EQ(seen.depth, 0x5a5a5a5a);
  EXPECT_EQ(seen.wire, Wire::kNone);
  EXPECT_EQ(seen.scale_bytes, 0);
  EXPECT_EQ(seen.shared.num_experts, 0);
  EXPECT_TRUE(seen.replicas.instances.empty());
  EXPECT_TRUE(seen.token_ranks.empty() && seen.expert_ranks.empty());

  ferry_dispatch_args dispatch;
  std::memset(&dispatch, 0x5a, sizeof dispatch);
  dispatch.struct_size = offsetof(ferry_dispatch_args, cached);
  dispatch.version = FERRY_ABI_VERSION;
  const DispatchArgs args = capi::to_dispatch_args(&dispatch);
  EXPECT_EQ(args.tokens.hidden, 0x5a5a5a5a5a5a5a5a);
  EXPECT_FALSE(args.cached);
  EXPECT_EQ(args.deadline.count(), 0);
  EXPECT_EQ(args.scales.data, nullptr);
  EXPECT_TRUE(args.active_ranks.empty());
}

TEST(CapiStructs, AnOlderCallerRuns) {
  on_ranks(2, [](ferry_group* group) {
    ferry_config config = small_config();
    config.struct_size = offsetof(ferry_config, expert_rank);
    Seat seat(group, config);
    auto dispatch = seat.dispatch_args();
    dispatch.struct_size = offsetof(ferry_dispatch_args, topk_weights);
    dispatch.deadline_ns = -1;
    seat.received.struct_size = offsetof(ferry_received, scales);
    seat.received.scale_columns = 77;
    expect_ok(ferry_dispatch(seat.exchange, &dispatch, &seat.received));
    EXPECT_EQ(seat.received.scale_columns, 77);  // after the end of the caller's struct
    auto combine = seat.combine_args();
    combine.struct_size = offsetof(ferry_combine_args, dispatched);
    expect_ok(ferry_combine(seat.exchange, &combine));
    EXPECT_EQ(seat.out, seat.tokens);
  });
}

TEST(CapiStructs, ANewerCallerThatUsesNothingNewRuns) {
  on_ranks(2, [](ferry_group* group) {
    Seat seat(group);
    Newer<ferry_dispatch_args> dispatch;
    dispatch.known = seat.dispatch_args();
    dispatch.known.struct_size = sizeof dispatch;
    Newer<ferry_received> received;
    received.tail[1] = 5;
    expect_ok(ferry_dispatch(seat.exchange, &dispatch.known, &received.known));
    EXPECT_EQ(received.known.struct_size, sizeof received);
    EXPECT_EQ(received.known.version, 1U);
    EXPECT_GT(received.known.num_rows, 0);
    EXPECT_EQ(received.tail[1], 0U);  // a field that this library does not know becomes 0
    expect_ok(ferry_received_release(&received.known));
    EXPECT_EQ(received.known.owner, nullptr);
    EXPECT_EQ(received.known.struct_size, sizeof received);
  });
}

TEST(CapiStructs, AFieldOfANewerHeaderIsRefusedByName) {
  Newer<ferry_config> config;
  config.tail[1] = 1;
  auto window = sized<ferry_window>();
  expect_error(ferry_window_bytes(&config.known, 2, &window), FERRY_INVALID_ARGUMENT,
               {"ferry_config", std::to_string(sizeof config), std::to_string(sizeof config.known),
                "byte " + std::to_string(offsetof(Newer<ferry_config>, tail) + 8) + " is 1",
                "newer header"});
  EXPECT_EQ(window.expected_bytes, 0U);
}

}  // namespace
}  // namespace ferry::test
