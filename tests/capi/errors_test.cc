// NULL arguments, error messages and their lifetime, and refusals after which the group is usable.
#include <gtest/gtest.h>

#include <thread>

#include "seat.h"

namespace ferry::test {
namespace {

TEST(CapiErrors, NullIsRefusedByName) {
  on_ranks(1, [](ferry_group* group) {
    Seat seat(group);
    expect_ok(seat.dispatch());
    const auto refused = [](ferry_code code, const std::string& name) {
      expect_error(code, FERRY_INVALID_ARGUMENT, {name + " is NULL"});
    };
    const ferry_config config = small_config();
    const auto dispatch = seat.dispatch_args();
    const auto combine = seat.combine_args();
    auto window = sized<ferry_window>();
    auto received = sized<ferry_received>();
    auto rows = sized<ferry_output_rows>();
    ferry_group* other = nullptr;
    ferry_exchange* exchange = nullptr;
    ferry_handle* kept = nullptr;
    std::uint64_t operation = 0;
    refused(ferry_group_connect(nullptr, 0, 1, nullptr, &other), "address");
    refused(ferry_group_connect("a", 0, 1, nullptr, nullptr), "group");
    refused(ferry_group_from_environment(nullptr, nullptr), "group");
    refused(ferry_group_from_all_gather(0, 1, nullptr, nullptr, &other), "ferry_all_gather");
    refused(ferry_group_threads(1, nullptr, nullptr), "groups");
    refused(ferry_run_threads(1, nullptr, nullptr, nullptr), "body");
    refused(ferry_group_barrier(nullptr), "group");
    refused(ferry_group_all_gather(nullptr, &operation, 8, &operation), "group");
    refused(ferry_exchange_create(nullptr, &config, &exchange), "group");
    refused(ferry_exchange_create(group, nullptr, &exchange), "ferry_config");
    refused(ferry_exchange_create(group, &config, nullptr), "exchange");
    refused(ferry_exchange_join(nullptr, &config, &exchange), "group");
    refused(ferry_exchange_join(group, nullptr, &exchange), "ferry_config");
    refused(ferry_exchange_join(group, &config, nullptr), "exchange");
    expect_error(ferry_exchange_join(group, &config, &exchange), FERRY_INVALID_ARGUMENT,
                 {"rank 0 may join in view 1"});
    refused(ferry_window_bytes(nullptr, 1, &window), "ferry_config");
    refused(ferry_window_bytes(&config, 1, nullptr), "ferry_window");
    refused(ferry_exchange_stats(nullptr, nullptr), "exchange");
    refused(ferry_exchange_stats(seat.exchange, nullptr), "ferry_stats");
    refused(ferry_dispatch(nullptr, &dispatch, &received), "exchange");
    refused(ferry_dispatch(seat.exchange, nullptr, &received), "ferry_dispatch_args");
    refused(ferry_dispatch(seat.exchange, &dispatch, nullptr), "ferry_received");
    refused(ferry_dispatch_send(seat.exchange, &dispatch, nullptr), "operation");
    refused(ferry_dispatch_recv(nullptr, 1, &received), "exchange");
    refused(ferry_combine(nullptr, &combine), "exchange");
    refused(ferry_combine(seat.exchange, nullptr), "ferry_combine_args");
    refused(ferry_combine_send(seat.exchange, &combine, nullptr), "operation");
    refused(ferry_combine_recv(nullptr, 1), "exchange");
    refused(ferry_received_release(nullptr), "ferry_received");
    refused(ferry_allocate_outputs(nullptr, 1, 1, 0, &rows), "exchange");
    refused(ferry_allocate_outputs(seat.exchange, 1, 1, 0, nullptr), "ferry_output_rows");
    int32_t may = 1;
    refused(ferry_may_write(nullptr, rows.data, &may), "exchange");
    EXPECT_EQ(may, 0);
    refused(ferry_may_write(seat.exchange, rows.data, nullptr), "may");
    refused(ferry_handle_keep(nullptr, &kept), "handle");
    refused(ferry_handle_keep(seat.received.handle, nullptr), "kept");
    refused(ferry_handle_counts(nullptr, nullptr), "handle");
    seat.expect_works();
  });
}

TEST(CapiErrors, NullIsFineWhereItSaysSo) {
  ferry_group_destroy(nullptr);
  ferry_exchange_destroy(nullptr);
  ferry_handle_free(nullptr);
  EXPECT_EQ(ferry_group_rank(nullptr), -1);
  EXPECT_EQ(ferry_group_size(nullptr), -1);
  EXPECT_EQ(ferry_group_launcher(nullptr), nullptr);
  EXPECT_EQ(ferry_group_reason(nullptr), nullptr);
  EXPECT_EQ(ferry_group_usable(nullptr), 0);
  EXPECT_EQ(ferry_exchange_num_local_experts(nullptr), -1);
  EXPECT_EQ(ferry_poll(nullptr, 1), 1);
  auto received = sized<ferry_received>();
  expect_ok(ferry_received_release(&received));  // holds nothing
}

TEST(CapiErrors, TheMessageLastsUntilTheNextErrorOfTheThread) {
  ferry_group* group = nullptr;
  expect_error(ferry_group_connect("here", 3, 2, nullptr, &group), FERRY_INVALID_ARGUMENT,
               {"rank 3 of 2"});
  const char* message = ferry_last_error_message();
  const std::string before = message;
  std::thread([&] {
    EXPECT_STREQ(ferry_last_error_message(), "");  // each thread has its own message
    EXPECT_EQ(ferry_last_error_rank(), -1);
    expect_error(ferry_group_barrier(nullptr), FERRY_INVALID_ARGUMENT, {"group is NULL"});
  }).join();
  auto received = sized<ferry_received>();
  expect_ok(ferry_received_release(&received));
  EXPECT_EQ(message, before);  // a call that succeeds does not change it
  expect_error(ferry_group_barrier(nullptr), FERRY_INVALID_ARGUMENT, {"group is NULL"});
  EXPECT_EQ(ferry_last_error_message(), message);
}

TEST(CapiErrors, LongMessagesAreCut) {
  const std::string address(3000, 'x');
  ferry_group* group = nullptr;
  expect_error(ferry_group_connect(address.c_str(), 0, 1, nullptr, &group), FERRY_INVALID_ARGUMENT,
               {"xxx"});
  EXPECT_EQ(last_message().size(), 2047U);
}

TEST(CapiErrors, NamesAndSizes) {
  EXPECT_STREQ(ferry_version(), FERRY_VERSION);
  EXPECT_EQ(ferry_abi_version(), 1U);
  EXPECT_STREQ(ferry_code_name(FERRY_PEER_REJECTED), "peer_rejected");
  EXPECT_STREQ(ferry_code_name(11), "unknown");
  EXPECT_STREQ(ferry_data_type_name(FERRY_TYPE_FP8_E4M3), "fp8_e4m3");
  EXPECT_STREQ(ferry_layout_name(FERRY_LAYOUT_PADDED), "padded");
  EXPECT_STREQ(ferry_wire_name(FERRY_WIRE_FP8_POW2), "fp8_pow2");
  EXPECT_STREQ(ferry_combine_wire_name(FERRY_COMBINE_WIRE_INT8_BLOCK128), "int8_128");
  EXPECT_EQ(ferry_element_bytes(FERRY_TYPE_FP32), 4U);
  EXPECT_EQ(ferry_code_group_usable(FERRY_MISMATCH), 1);
  EXPECT_EQ(ferry_code_group_usable(FERRY_TIMEOUT), 0);
}

// The engine refuses a bad id, and the C ABI a bad struct. To the other ranks both are a refused
// call, and the next call works.
TEST(CapiErrors, ARefusedCallIsACall) {
  on_ranks(3, [](ferry_group* group) {
    Seat seat(group);
    const bool culprit = ferry_group_rank(group) == 1;
    const auto expect_refusal = [&](ferry_code code, const std::string& part) {
      expect_error(code, culprit ? FERRY_INVALID_ARGUMENT : FERRY_PEER_REJECTED, {part});
      EXPECT_EQ(ferry_last_error_rank(), 1);
      EXPECT_EQ(ferry_group_usable(group), 1);
    };
    seat.ids[5] = culprit ? 17 : 5;
    expect_refusal(seat.dispatch(), "17");
    EXPECT_EQ(seat.received.owner, nullptr);
    seat.ids[5] = 5;
    auto dispatch = seat.dispatch_args();
    if (culprit) dispatch.version = 9;
    expect_refusal(ferry_dispatch(seat.exchange, &dispatch, &seat.received), "version is 9");
    std::uint64_t operation = 77;
    expect_refusal(ferry_dispatch_send(seat.exchange, &dispatch, &operation), "version is 9");
    EXPECT_EQ(operation, 0U);
    expect_ok(seat.dispatch());
    auto combine = seat.combine_args();
    if (culprit) combine.struct_size = 12;
    expect_refusal(ferry_combine(seat.exchange, &combine), "struct_size is 12");
    // The send half of a combine does not wait, so the others learn of a refusal when they receive.
    ferry_code code = ferry_combine_send(seat.exchange, &combine, &operation);
    if (!culprit) {
      expect_ok(code);
      code = ferry_combine_recv(seat.exchange, operation);
    }
    expect_refusal(code, "struct_size is 12");
    seat.expect_works();
  });
}

TEST(CapiErrors, ConfigurationsThatCannotBe) {
  on_ranks(2, [](ferry_group* group) {
    ferry_config config = small_config();
    config.top_k = 33;
    ferry_exchange* exchange = reinterpret_cast<ferry_exchange*>(&config);
    expect_error(ferry_exchange_create(group, &config, &exchange), FERRY_INVALID_ARGUMENT,
                 {"top_k", "33", "32"});
    EXPECT_EQ(exchange, nullptr);
    auto window = sized<ferry_window>();
    expect_error(ferry_window_bytes(&config, 2, &window), FERRY_INVALID_ARGUMENT, {"top_k"});
    config = small_config();
    config.hidden += ferry_group_rank(group);
    expect_error(ferry_exchange_create(group, &config, &exchange), FERRY_MISMATCH,
                 {"hidden is 32 and 33"});
    Seat(group).expect_works();
  });
}

TEST(CapiErrors, NoSuchOperation) {
  on_ranks(1, [](ferry_group* group) {
    Seat seat(group);
    std::uint64_t operation = 0;
    const auto dispatch = seat.dispatch_args();
    expect_error(ferry_dispatch_recv(seat.exchange, 5, &seat.received), FERRY_INVALID_ARGUMENT,
                 {"operation 5"});
    expect_error(ferry_combine_recv(seat.exchange, 0), FERRY_INVALID_ARGUMENT, {"operation 0"});
    expect_ok(ferry_dispatch_send(seat.exchange, &dispatch, &operation));
    expect_error(ferry_combine_recv(seat.exchange, operation), FERRY_INVALID_ARGUMENT,
                 {"not a combine"});
    expect_ok(ferry_dispatch_recv(seat.exchange, operation, &seat.received));
    auto times = sized<ferry_times>();
    expect_error(ferry_exchange_times(seat.exchange, 2, &times), FERRY_INVALID_ARGUMENT,
                 {"kind is 2"});
    auto span = sized<ferry_span>();
    expect_error(ferry_exchange_span(seat.exchange, FERRY_OPERATION_COMBINE, 0, &span),
                 FERRY_INVALID_ARGUMENT, {"span 0, need an index in [0, 0)"});
  });
}

// Rank 1 is refused before there is an exchange: a configuration that cannot be read, one that is
// not legal, no place for the result, no memory. The other ranks get the refusal, and no rank
// waits.
TEST(CapiErrors, ExchangeThatOneRankCannotMakeIsToldToAll) {
  on_ranks(3, [](ferry_group* group) {
    const bool odd = ferry_group_rank(group) == 1;
    ferry_exchange* exchange = nullptr;
    const auto expect_refused = [&](const ferry_config& config, ferry_exchange** made,
                                    const char* part) {
      const ferry_code code = ferry_exchange_create(group, &config, made);
      expect_error(code, odd ? FERRY_INVALID_ARGUMENT : FERRY_PEER_REJECTED, {part});
      EXPECT_EQ(ferry_last_error_rank(), 1);
      EXPECT_EQ(exchange, nullptr);
    };
    ferry_config old = small_config(), illegal = small_config();
    if (odd) old.struct_size = 12;
    if (odd) illegal.top_k = 33;
    expect_refused(old, &exchange, "struct_size is 12");
    expect_refused(illegal, &exchange, "top_k is 33");
    expect_refused(small_config(), odd ? nullptr : &exchange, "exchange is NULL");
    const ferry_config good = small_config();
    expect_ok(ferry_exchange_create(group, &good, &exchange));
    ferry_exchange_destroy(exchange);
  });
}

}  // namespace
}  // namespace ferry::test
