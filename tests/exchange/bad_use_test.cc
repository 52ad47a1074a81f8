// Bad use of the objects: handles and buffers of elsewhere, too much in flight, fixed capacities,
// destroyed groups, and configurations that cannot be. Each is an error, and the group works after
// where there still is one.
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "seat.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 3;

ExchangeConfig small_config() {
  ExchangeConfig config;
  config.max_tokens = 8;
  config.hidden = 32;
  config.num_experts = 6;
  config.top_k = 2;
  return config;
}

class BadUse : public testing::TestWithParam<Mode> {
 protected:
  void run(const Scenario& scenario, const std::function<void(Group, Seat&)>& body) {
    run_ranks(GetParam(), kRanks, [&](Group group) {
      Seat seat(group, scenario);
      body(std::move(group), seat);
    });
  }
};

void require_works(Seat& seat, int round) {
  Received received = seat.dispatch(round);
  seat.combine(round, received.handle, &received);
}

// A combine of round 0 by hand.
CombineCall make_combine(Seat& seat, const Scenario& scenario, const Handle& handle,
                         Random& random) {
  return {seat.exchange(),
          scenario,
          scenario.rounds[0],
          scenario.rounds[0].combines[0],
          seat.rank(),
          handle,
          nullptr,
          random};
}

TEST_P(BadUse, MoreInFlightThanTheDepth) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 4, 81);
  run(scenario, [&](Group, Seat& seat) {
    const Operation first = seat.dispatch_send(0);
    const Operation second = seat.dispatch_send(1);
    Random random(1);
    DispatchCall call(scenario, scenario.rounds[2], seat.rank(), random);
    Operation third;
    const Status status = seat.exchange().dispatch_send(call.args(), third);
    require_status(status, Code::kInvalidArgument, {"2", "in flight", "depth"},
                   "a third operation");
    require(status.group_usable() && third.number == 0, "no operation was started");
    seat.dispatch_recv(1, second);
    seat.dispatch_recv(0, first);
    require_works(seat, 3);
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
    require_works(seat, 1);
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
    require_works(seat, 1);
  });
}

TEST_P(BadUse, HandleOfAnotherExchange) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 84);
  run(scenario, [&](Group group, Seat& seat) {
    Seat other(group, scenario);
    const Handle foreign = other.dispatch(0).handle;
    Random random(1);
    CombineCall combine = make_combine(seat, scenario, foreign, random);
    require_status(seat.exchange().combine(combine.args()), Code::kInvalidArgument, {"exchange"},
                   "combine");
    DispatchCall dispatch(scenario, scenario.rounds[0], seat.rank(), random);
    dispatch.args().topk_ids = {};
    dispatch.args().cached = foreign;
    Received none;
    require_status(seat.exchange().dispatch(dispatch.args(), none), Code::kInvalidArgument,
                   {"exchange"}, "dispatch");
    require_works(seat, 1);
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
    Random random(1);
    CombineCall combine = make_combine(seat, scenario, foreign, random);
    require_status(seat.exchange().combine(combine.args()), Code::kInvalidArgument, {"exchange"},
                   "combine");
    require_works(seat, 1);
  });
}

TEST_P(BadUse, CachedDispatchWithOtherTokensOrMasks) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 86);
  run(scenario, [&](Group, Seat& seat) {
    const Handle handle = seat.dispatch(0).handle;
    Random random(1);
    DispatchCall call(scenario, scenario.rounds[0], seat.rank(), random);
    call.args().cached = handle;
    Received none;
    require_status(seat.exchange().dispatch(call.args(), none), Code::kInvalidArgument, {"ids"},
                   "ids and a handle");
    call.args().topk_ids = {};
    call.args().tokens.num_rows = 5;
    require_status(seat.exchange().dispatch(call.args(), none), Code::kInvalidArgument, {"5", "8"},
                   "other T");
    require_works(seat, 1);
  });
}

TEST_P(BadUse, CombineInPlaceOnAReleasedBuffer) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 87);
  run(scenario, [&](Group, Seat& seat) {
    Received received = seat.dispatch(0);
    const Handle handle = received.handle;
    Random random(1);
    CombineCall combine = make_combine(seat, scenario, handle, random);
    combine.args().expert_rows = received.rows();
    received.release();
    require_status(seat.exchange().combine(combine.args()), Code::kInvalidArgument, {"released"},
                   "released rows");
    require_works(seat, 1);
  });
}

TEST_P(BadUse, OutInTheWindow) {
  const Scenario scenario = plain_scenario(kRanks, small_config(), 2, 88);
  run(scenario, [&](Group, Seat& seat) {
    const Received received = seat.dispatch(0);
    OutputRows window_memory;
    require_ok(seat.exchange().allocate_outputs(8, 32, DataType::kFp32, window_memory),
               "allocate_outputs");
    Random random(1);
    CombineCall combine = make_combine(seat, scenario, received.handle, random);
    combine.args().out = window_memory.data;
    require_status(seat.exchange().combine(combine.args()), Code::kInvalidArgument, {"window"},
                   "out in the window");
    require_works(seat, 1);
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
    require_works(seat, 0);
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
      Random random(1);
      DispatchCall call(scenario, scenario.rounds[0], seat.rank(), random);
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
    require_works(seat, 0);
    require_ok(group.barrier(), "barrier");
    Group copy = group;
    group.destroy();
    require_status(group.barrier(), Code::kClosed, {}, "barrier of a destroyed group");
    require_status(copy.barrier(), Code::kClosed, {"destroyed"}, "barrier of its copy");
    Random random(1);
    DispatchCall call(scenario, scenario.rounds[0], seat.rank(), random);
    Received none;
    require_status(seat.exchange().dispatch(call.args(), none), Code::kClosed, {"destroyed"},
                   "its exchange");
    Exchange empty;
    require_status(empty.dispatch(call.args(), none), Code::kClosed, {}, "an exchange of nothing");
    require_status(empty.combine({}), Code::kClosed, {}, "an exchange of nothing");
    try {
      Exchange late(copy, scenario.config);
      throw Failure("an exchange was made on a destroyed group");
    } catch (const Error& error) {
      require(error.code() == Code::kClosed, error.what());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, BadUse, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, BadUse, testing::Values(Mode::kProcesses));

struct BadConfig {
  const char* name;
  std::function<void(ExchangeConfig&)> spoil;
  std::vector<std::string> parts;
};
void PrintTo(const BadConfig& bad, std::ostream* stream) { *stream << bad.name; }

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

const std::vector<BadConfig> kBadConfigs = {
    {"ZeroExperts", [](ExchangeConfig& c) { c.num_experts = 0; }, {"num_experts", "0"}},
    {"NegativeExperts", [](ExchangeConfig& c) { c.num_experts = -4; }, {"num_experts", "-4"}},
    {"ZeroHidden", [](ExchangeConfig& c) { c.hidden = 0; }, {"hidden", "0"}},
    {"AbsurdHidden",
     [](ExchangeConfig& c) { c.hidden = kMost; },
     {"hidden", "9223372036854775807"}},
    {"ZeroTopK", [](ExchangeConfig& c) { c.top_k = 0; }, {"top_k", "0", "32"}},
    {"TopKPastTheLimit", [](ExchangeConfig& c) { c.top_k = 33; }, {"top_k", "33", "32"}},
    {"NegativeTokens", [](ExchangeConfig& c) { c.max_tokens = -1; }, {"max_tokens", "-1"}},
    {"AbsurdTokens",
     [](ExchangeConfig& c) { c.max_tokens = kMost; },
     {"max_tokens", "9223372036854775807"}},
    {"TokensTimesHiddenOverflow",
     [](ExchangeConfig& c) {
       c.max_tokens = std::int64_t{1} << 31, c.hidden = std::int64_t{1} << 31, c.top_k = 32;
     },
     {"2147483648"}},
    {"UnknownType",
     [](ExchangeConfig& c) { c.dtype = static_cast<DataType>(50); },
     {"dtype", "50"}},
    {"UnknownLayout",
     [](ExchangeConfig& c) { c.layout = static_cast<Layout>(9); },
     {"layout", "9"}},
    {"ZeroAlignment", [](ExchangeConfig& c) { c.expert_alignment = 0; }, {"expert_alignment", "0"}},
    {"ZeroDepth", [](ExchangeConfig& c) { c.depth = 0; }, {"depth", "0", "16"}},
    {"DepthPastTheLimit", [](ExchangeConfig& c) { c.depth = 17; }, {"depth", "17", "16"}},
    {"ZeroWorkers", [](ExchangeConfig& c) { c.workers = 0; }, {"workers", "0"}},
    {"PlacementOfOtherLength",
     [](ExchangeConfig& c) {
       c.expert_rank = {0, 1};
     },
     {"2", "6"}},
    {"PlacementOnUnknownRank",
     [](ExchangeConfig& c) { c.expert_rank = {0, 1, 1, 3, 0, 1}; },
     {"expert_rank", "3"}},
    {"PlacementOnNegativeRank",
     [](ExchangeConfig& c) { c.expert_rank = {0, 1, 1, -1, 0, 1}; },
     {"expert_rank", "-1"}},
    {"NegativeCapacity", [](ExchangeConfig& c) { c.row_capacity = -5; }, {"row_capacity", "-5"}},
    {"CapacityOfAnotherLayout",
     [](ExchangeConfig& c) { c.expert_capacity = 4; },
     {"expert_capacity", "4"}},
};

class BadConfigs : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigs, ThrowWithTheValueAndTheLimit) {
  const BadConfig& bad = GetParam();
  const Scenario scenario = plain_scenario(2, small_config(), 1, 92);
  ExchangeConfig config = small_config();
  bad.spoil(config);
  const auto require_error = [&](const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      require(error.code() == Code::kInvalidArgument, error.what());
      for (const std::string& part : bad.parts)
        require(contains(error.what(), part), part + " not in: " + error.what());
      return;
    }
    throw Failure("no error");
  };
  run_ranks(Mode::kThreads, 2, [&](Group group) {
    require_error([&] { Exchange exchange(group, config); });
    require_error([&] { std::ignore = window_bytes(config, 2); });
    Seat seat(group, scenario);
    require_works(seat, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(All, BadConfigs, testing::ValuesIn(kBadConfigs),
                         [](const testing::TestParamInfo<BadConfig>& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace ferry::test
