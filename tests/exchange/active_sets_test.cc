// Sets of active ranks that change between nodes: the paths of messages change with them, so flags
// of one set might overtake rows of another.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "holding_transport.h"
#include "seat.h"

namespace ferry::test {
namespace {

constexpr int kLonger = 1500;  // ms; longer than a rank waits for ranks that are left out
constexpr std::int64_t kUnwaitedNs =
    500'000'000;  // shorter than such a wait, and long for a busy machine

using Sets = std::vector<std::vector<int>>;  // the active ranks of each round; empty: all

Scenario scenario_of(const Nodes& nodes, const Sets& active) {
  const ExchangeConfig config = {
      .max_tokens = 16, .hidden = 64, .num_experts = 12, .top_k = 2, .depth = 1};
  Scenario scenario = plain_scenario(static_cast<int>(nodes.of_rank.size()), config,
                                     static_cast<int>(active.size()), 82);
  for (std::size_t round = 0; round < active.size(); ++round) {
    for (internal::RankInput& input : scenario.rounds[round].inputs)
      input.active_ranks = active[round];
    expect_dispatch(config, scenario.rounds[round]);
  }
  return scenario;
}

// Messages from rank 1 to the other node go by rank 3 in the first round, and by rank 2 in the
// second, from which rank 3 is left out. The rows of the first round are held back at rank 3
// meanwhile.
TEST(ActiveSets, FlagsOfANewSetDoNotOvertakeRowsOfTheLast) {
  const Nodes nodes = nodes_of_sizes({2, 2});
  const Scenario scenario = scenario_of(nodes, {{}, {0, 1, 2}});
  HeldMessages rows{.source = 1};
  run_while_held(nodes, rows, [&](Group group) {
    Seat seat(group, scenario);
    const Operation sent = seat.dispatch_send(0);
    if (group.rank() == 3) {
      nap(kLonger);
      rows.held.store(false, std::memory_order_release);
    }
    seat.dispatch_recv(0, sent);
    seat.dispatch(1);
    require_ok(group.barrier(), "barrier");
  });
}

// Rank 1 is stuck with rows of the first round, which it has not read. Rank 2 takes its place in
// the second round. What rank 2 then tells its node about rank 0 belongs to a later operation.
TEST(ActiveSets, RankThatIsLeftBehindIsToldSo) {
  const Nodes nodes = nodes_of_sizes({1, 2});
  const Scenario scenario = scenario_of(nodes, {{0, 1}, {0, 2}});
  HeldMessages rows{.source = 0};
  run_while_held(nodes, rows, [&](Group group) {
    Seat seat(group, scenario);
    const Operation sent = seat.dispatch_send(0);
    if (group.rank() == 1) {
      nap(kLonger);
      Received received;
      const Status status = seat.exchange().dispatch_recv(sent, received);
      rows.held.store(false, std::memory_order_release);
      require_status(status, Code::kMismatch, {"others went on without rank 1"}, "receive half");
      require(status.culprit() == 1 && received.data == nullptr, status.message());
    } else {
      seat.dispatch_recv(0, sent);
    }
    seat.dispatch(1);
    require_ok(group.barrier(), "barrier");
  });
}

// The front of rank 2 refuses the arguments of an operation from which rank 2 is left out. Flags of
// that operation do not come to the node of rank 2.
TEST(ActiveSets, RankThatIsLeftOutRefusesForItself) {
  const Nodes nodes = nodes_of_sizes({1, 1, 1});
  const Scenario scenario = scenario_of(nodes, {{}, {0, 1}, {0, 1}, {}});
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    seat.dispatch(0);
    for (const int round : {1, 2}) {
      if (group.rank() != 2) {
        seat.dispatch(round);
        continue;
      }
      const Status status =
          seat.exchange().refuse_dispatch({Code::kInvalidArgument, "strided"}, {{0, 1}});
      require_status(status, Code::kInvalidArgument, {"strided"}, "refused dispatch");
    }
    seat.dispatch(3);
    require_ok(group.barrier(), "barrier");
  };
  run_threads(scenario.num_ranks, body,
              {.deadline = std::chrono::seconds(3), .topology = nodes.topology});
}

// All ranks name active ranks that are impossible. Nobody knows then which ranks make the call, so
// nobody waits. The ranks were last in different sets.
TEST(ActiveSets, SetsThatCannotBeAreRefusedAtOnce) {
  const std::vector<std::vector<int>> wrong = {{2, 2}, {0, 4}, {-1}};
  for (const std::vector<int>& sizes : {std::vector{4}, {2, 2}, {1, 1, 1, 1}}) {
    const Nodes nodes = nodes_of_sizes(sizes);
    const Scenario scenario = scenario_of(nodes, {{}, {0, 1}, {}, {1, 3}});
    const auto body = [&](Group group) {
      Seat seat(group, scenario);
      const auto refused = [&](int round, const std::vector<int>& active) {
        DispatchCall call = seat.dispatch_call(round);
        DispatchArgs args = call.args();
        args.active_ranks = active;
        Received none;
        require_status(seat.exchange().dispatch(args, none), Code::kInvalidArgument,
                       {"active_ranks["}, "a set that cannot be");
      };
      for (int round = 0; round < 4; ++round) {
        seat.dispatch(round);
        for (int repeat = 0; repeat < 4; ++repeat) {  // more often than records are kept
          for (const std::vector<int>& active : wrong) refused(round, active);
        }
      }
      require_ok(group.barrier(), "barrier");
    };
    run_threads(scenario.num_ranks, body,
                {.deadline = std::chrono::seconds(3), .topology = nodes.topology});
  }
}

// The same by one rank: the others read that it refused, also those that come later.
TEST(ActiveSets, SetThatCannotBeOfOneRankIsReadByTheOthers) {
  for (const std::vector<int>& sizes : {std::vector{3}, {1, 2}, {1, 1, 1}}) {
    const Nodes nodes = nodes_of_sizes(sizes);
    const Scenario scenario = scenario_of(nodes, {{}, {}, {}, {}, {}, {}});
    const auto body = [&](Group group) {
      Seat seat(group, scenario);
      seat.dispatch(0);
      for (int round = 1; round < 5; ++round) {
        if (group.rank() == 0) nap(20);
        DispatchCall call = seat.dispatch_call(round);
        DispatchArgs args = call.args();
        const std::vector<int> wrong = {1, 1};
        if (group.rank() == 1) args.active_ranks = wrong;
        Received none;
        require_status(seat.exchange().dispatch(args, none),
                       group.rank() == 1 ? Code::kInvalidArgument : Code::kPeerRejected,
                       {"active_ranks[1] is 1"}, "a set that cannot be");
      }
      seat.dispatch(5);
      require_ok(group.barrier(), "barrier");
    };
    run_threads(scenario.num_ranks, body,
                {.deadline = std::chrono::seconds(3), .topology = nodes.topology});
  }
}

// The same while the others change their set: ranks outside the last set of the rank read it too.
TEST(ActiveSets, SetThatCannotBeIsReadByTheOthersAtAChange) {
  const Sets changes[] = {{{}, {0, 1}, {}},
                          {{}, {}, {0, 1}},
                          {{}, {0, 1}, {1, 2}},
                          {{}, {1, 3}, {0, 1, 2}},
                          {{1}, {0, 1, 2, 3}}};
  for (const std::vector<int>& sizes : {std::vector{4}, {2, 2}, {1, 1, 1, 1}}) {
    for (const Sets& change : changes) {
      const std::string name = testing::PrintToString(sizes) + testing::PrintToString(change);
      const Nodes nodes = nodes_of_sizes(sizes);
      Sets active = change;
      active.push_back({});
      const Scenario scenario = scenario_of(nodes, active);
      const auto body = [&](Group group) {
        Seat seat(group, scenario);
        const int last = static_cast<int>(active.size()) - 2;
        for (int round = 0; round < last; ++round) seat.dispatch(round);
        for (int repeat = 0; repeat < 3; ++repeat) {
          DispatchCall call = seat.dispatch_call(last);
          DispatchArgs args = call.args();
          const std::vector<int> wrong = {1, 1};
          if (group.rank() == 1) args.active_ranks = wrong;
          Received none;
          const Status status = seat.exchange().dispatch(args, none);
          if (!scenario.rounds[last].takes_part(group.rank())) {
            require_ok(status, name + ", left out");
            continue;
          }
          require_status(status, group.rank() == 1 ? Code::kInvalidArgument : Code::kPeerRejected,
                         {"active_ranks[1] is 1"}, name);
        }
        seat.dispatch(last);
        seat.dispatch(last + 1);
        require_ok(group.barrier(), "barrier");
      };
      run_threads(scenario.num_ranks, body,
                  {.deadline = std::chrono::seconds(3), .topology = nodes.topology});
    }
  }
}

// Sets that follow each other without a combine. No message of its own tells the end of a dispatch,
// so a rank that goes on without some ranks has to tell these.
struct Sequence {
  const char* name;
  std::vector<int> nodes;  // sizes
  Sets active;
};

class ActiveSetsInARow : public testing::TestWithParam<Sequence> {};

TEST_P(ActiveSetsInARow, NoRankWaitsForOneThatMakesAllCalls) {
  const Nodes nodes = nodes_of_sizes(GetParam().nodes);
  const Scenario scenario = scenario_of(nodes, GetParam().active);
  std::int64_t least_ns = std::numeric_limits<std::int64_t>::max();  // least of the longest calls
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<std::int64_t> longest_ns(scenario.num_ranks);
    const auto body = [&](Group group) {
      Seat seat(group, scenario);
      std::int64_t& mine_ns = longest_ns[group.rank()];
      for (int round = 0; round < static_cast<int>(scenario.rounds.size()); ++round) {
        const std::int64_t began_ns = internal::now_ns();
        seat.dispatch(round);
        mine_ns = std::max(mine_ns, internal::now_ns() - began_ns);
      }
      require_ok(group.barrier(), "barrier");
    };
    run_threads(scenario.num_ranks, body, {.topology = nodes.topology});
    least_ns = std::min(least_ns, *std::max_element(longest_ns.begin(), longest_ns.end()));
  }
  EXPECT_LT(least_ns, kUnwaitedNs);
}

// Ranks that are left out for good, and make no call any more.
TEST_P(ActiveSetsInARow, SilentRanksAreLeftBehind) {
  const Nodes nodes = nodes_of_sizes(GetParam().nodes);
  const Scenario scenario = scenario_of(nodes, GetParam().active);
  const auto last_round = [&](int rank) {
    int last = 0;
    for (int round = 0; round < static_cast<int>(scenario.rounds.size()); ++round)
      if (scenario.rounds[round].takes_part(rank)) last = round;
    return last;
  };
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    for (int round = 0; round <= last_round(group.rank()); ++round) seat.dispatch(round);
    require_ok(group.barrier(), "barrier");
  };
  run_threads(scenario.num_ranks, body, {.topology = nodes.topology});
}

INSTANTIATE_TEST_SUITE_P(
    Sets, ActiveSetsInARow,
    testing::Values(Sequence{"NodeThenNode", {2, 2}, {{}, {0, 1}, {2, 3}}},
                    Sequence{"NodesInTurns", {2, 2}, {{0, 1}, {2, 3}, {0, 1}, {2, 3}}},
                    Sequence{"AcrossThenAcross", {2, 2}, {{}, {0, 2}, {1, 3}, {}}},
                    Sequence{"Shrinking", {2, 2}, {{}, {0, 1, 2}, {0, 1}, {0}}},
                    Sequence{"Growing", {2, 2}, {{3}, {2, 3}, {1, 2, 3}, {}}},
                    Sequence{"OneByOne", {1, 1, 1}, {{0}, {1}, {2}, {0}, {}}},
                    Sequence{"OneNode", {4}, {{}, {0, 1}, {2, 3}, {1, 2}}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ferry::test
