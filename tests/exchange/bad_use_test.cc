// Wrong uses of the objects: handles and buffers of other exchanges, too many operations in flight,
// fixed capacities, destroyed groups. Each is an error, after which the group, if it still exists,
// is usable.
#include <gtest/gtest.h>

#include <optional>

#include "bad_calls.h"

namespace ferry::test {
namespace {

class BadUse : public SeatTest {};

TEST_P(BadUse, MoreInFlightThanTheDepth) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 4, 81);
  run(scenario, [&](Group, Seat& seat) {
    const Operation first = seat.dispatch_send(0);
    const Operation second = seat.dispatch_send(1);
    DispatchCall call = seat.dispatch_call(2);
    Operation third;
    const Status status = seat.exchange().dispatch_send(call.args(), third);
    require_status(status, Code::kInvalidArgument, {"2", "in flight", "depth"},
                   "a third operation");
    require(status.group_usable() && third.number == 0, "no operation was started");
    seat.dispatch_recv(1, second);
    seat.dispatch_recv(0, first);
    seat.play(3);
  });
}

TEST_P(BadUse, OperationsThatAreNotInFlight) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 82);
  run(scenario, [&](Group, Seat& seat) {
    Received received;
    require_status(seat.exchange().dispatch_recv({}, received), Code::kInvalidArgument, {"0"},
                   "operation 0");
    require_status(seat.exchange().combine_recv({77}), Code::kInvalidArgument, {"77"},
                   "operation 77");
    const Operation sent = seat.dispatch_send(0);
    require_status(seat.exchange().combine_recv(sent), Code::kInvalidArgument, {"1", "combine"},
                   "of the other kind");
    seat.dispatch_recv(0, sent);
    require_status(seat.exchange().dispatch_recv(sent, received), Code::kInvalidArgument, {"1"},
                   "received twice");
    seat.play(1);
  });
}

// An exchange that goes while an operation is in flight leaves the others in peace.
TEST_P(BadUse, DestroyedWithAnOperationInFlight) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 83);
  run_ranks(GetParam(), kRanks, [&](Group group) {
    {
      Seat seat(group, scenario);
      const Operation sent = seat.dispatch_send(0);
      if (seat.rank() != 1) seat.dispatch_recv(0, sent);
    }
    Seat seat(group, scenario);
    seat.play(1);
  });
}

TEST_P(BadUse, HandleOfAnotherExchange) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 84);
  run(scenario, [&](Group group, Seat& seat) {
    Seat other(group, scenario);
    const Handle foreign = other.dispatch(0).handle;
    CombineCall combine = seat.combine_call(0, foreign);
    require_status(seat.exchange().combine(combine.args()), Code::kInvalidArgument, {"exchange"},
                   "combine");
    DispatchCall dispatch = seat.dispatch_call(0);
    dispatch.args().topk_ids = {};
    dispatch.args().cached = foreign;
    Received none;
    require_status(seat.exchange().dispatch(dispatch.args(), none), Code::kInvalidArgument,
                   {"exchange"}, "dispatch");
    seat.play(1);
  });
}

// The first exchanges of two groups are different exchanges.
TEST(BadUseThreads, HandleOfAnExchangeOfAnotherGroup) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 85);
  std::vector<Group> others = Group::threads(kRanks, on_test_nodes({}, kRanks));
  run_ranks(Mode::kThreads, kRanks, [&](Group group) {
    Seat other(others[group.rank()], scenario);
    const Handle foreign = other.dispatch(0).handle;
    Seat seat(group, scenario);
    CombineCall combine = seat.combine_call(0, foreign);
    require_status(seat.exchange().combine(combine.args()), Code::kInvalidArgument, {"exchange"},
                   "combine");
    seat.play(1);
  });
}

TEST_P(BadUse, CachedDispatchWithOtherTokensOrMasks) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 86);
  run(scenario, [&](Group, Seat& seat) {
    const Handle handle = seat.dispatch(0).handle;
    DispatchCall call = seat.dispatch_call(0);
    call.args().cached = handle;
    Received none;
    require_status(seat.exchange().dispatch(call.args(), none), Code::kInvalidArgument, {"ids"},
                   "ids and a handle");
    call.args().topk_ids = {};
    call.args().tokens.num_rows = 5;
    require_status(seat.exchange().dispatch(call.args(), none), Code::kInvalidArgument, {"5", "8"},
                   "other T");
    seat.play(1);
  });
}

// A front may refuse a call for an error of its own, such as a timeout.
TEST_P(BadUse, RefusalByACodeOfABrokenGroup) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 91);
  run(scenario, [&](Group, Seat& seat) {
    DispatchCall call = seat.dispatch_call(0);
    Received none;
    const bool refuses = seat.rank() == kOffender;
    const Status status = refuses ? seat.exchange().refuse_dispatch({Code::kTimeout, "mine", 0})
                                  : seat.exchange().dispatch(call.args(), none);
    require_status(status, refuses ? Code::kInvalidArgument : Code::kPeerRejected,
                   {"timeout: mine"}, "dispatch");
    seat.play(1);
  });
}

TEST_P(BadUse, CombineInPlaceOnAReleasedBuffer) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 87);
  run(scenario, [&](Group, Seat& seat) {
    Received received = seat.dispatch(0);
    const Handle handle = received.handle;
    CombineCall combine = seat.combine_call(0, handle);
    combine.args().expert_rows = received.rows();
    received.release();
    require_status(seat.exchange().combine(combine.args()), Code::kInvalidArgument, {"released"},
                   "released rows");
    seat.play(1);
  });
}

TEST_P(BadUse, OutInTheWindow) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 88);
  run(scenario, [&](Group, Seat& seat) {
    const Received received = seat.dispatch(0);
    OutputRows window_memory;
    require_ok(seat.exchange().allocate_outputs(8, 32, DataType::kFp32, window_memory),
               "allocate_outputs");
    CombineCall combine = seat.combine_call(0, received.handle);
    combine.args().out = window_memory.data;
    require_status(seat.exchange().combine(combine.args()), Code::kInvalidArgument, {"window"},
                   "out in the window");
    seat.play(1);
  });
}

TEST_P(BadUse, OutputRowsPastTheLimits) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 1, 89);
  run(scenario, [&](Group, Seat& seat) {
    OutputRows rows;
    Exchange& exchange = seat.exchange();
    constexpr std::int64_t kHuge = std::int64_t{1} << 62;
    require_status(exchange.allocate_outputs(-1, 32, DataType::kBf16, rows), Code::kInvalidArgument,
                   {"-1"}, "rows");
    require_status(exchange.allocate_outputs(kHuge, 32, DataType::kBf16, rows),
                   Code::kInvalidArgument, {}, "rows");
    require_status(exchange.allocate_outputs(4, kHuge, DataType::kBf16, rows),
                   Code::kInvalidArgument, {}, "hidden");
    require_status(exchange.allocate_outputs(4, 65, DataType::kBf16, rows), Code::kInvalidArgument,
                   {"65"}, "hidden");
    require_status(exchange.allocate_outputs(4, 0, DataType::kBf16, rows), Code::kInvalidArgument,
                   {"0"}, "hidden");
    require(rows.data == nullptr, "no memory was given");
    seat.play(0);
  });
}

// All tokens go to one rank that may take fewer: nothing is written, everybody is told the numbers.
TEST_P(BadUse, OverflowOfAFixedCapacity) {
  for (const Layout layout : {Layout::kExpertMajor, Layout::kRankMajor, Layout::kPadded}) {
    ExchangeConfig config = small_config();
    config.layout = layout;
    if (layout == Layout::kPadded) config.expert_capacity = 20;
    if (layout != Layout::kPadded) config.row_capacity = 23;
    // 24 tokens: rank 0 gets 24 rows (rank_major), 48 rows (expert_major), 24 rows for each of its
    // experts (padded).
    Scenario scenario = plain_scenario(kRanks, config, 2, 90);
    route_all_to_first_experts(scenario, 0);
    for (internal::RankInput& input : scenario.rounds[1].inputs) {
      for (std::size_t i = 0; i < input.topk_ids.size(); ++i)
        input.topk_ids[i] = i % 2 == 0 ? static_cast<int>(i / 2) % 6 : -1;
    }
    expect_dispatch(config, scenario.rounds[1]);
    run(scenario, [&](Group, Seat& seat) {
      DispatchCall call = seat.dispatch_call(0);
      Received none;
      const Status status = seat.exchange().dispatch(call.args(), none);
      const std::string rows = layout == Layout::kExpertMajor ? "48" : "24";
      require_status(status, Code::kCapacity,
                     {"rank 0", rows, layout == Layout::kPadded ? "20" : "23"}, "overflow");
      require(status.culprit() == 0 && status.group_usable() && none.data == nullptr,
              status.message());
      seat.dispatch(1);
    });
  }
}

TEST_P(BadUse, DestroyedAndDefaultMadeObjects) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 1, 91);
  run(scenario, [&](Group group, Seat& seat) {
    seat.play(0);
    require_ok(group.barrier(), "barrier");
    Group copy = group;
    group.destroy();
    require_status(group.barrier(), Code::kClosed, {}, "barrier of a destroyed group");
    require_status(copy.barrier(), Code::kClosed, {"destroyed"}, "barrier of its copy");
    DispatchCall call = seat.dispatch_call(0);
    Received none;
    require_status(seat.exchange().dispatch(call.args(), none), Code::kClosed, {"destroyed"},
                   "its exchange");
    Exchange empty;
    require_status(empty.dispatch(call.args(), none), Code::kClosed, {}, "an exchange of nothing");
    require_status(empty.combine({}), Code::kClosed, {}, "an exchange of nothing");
    require_status(error_of([&] { Exchange late(copy, scenario.config); }), Code::kClosed, {},
                   "an exchange of a destroyed group");
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, BadUse, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, BadUse, testing::Values(Mode::kProcesses));

}  // namespace
}  // namespace ferry::test
