// Sets of active ranks that change between nodes: with them the ways of messages change, so flags
// of one set might overtake rows of another.
#include <gtest/gtest.h>

#include <vector>

#include "holding_link.h"
#include "seat.h"

namespace ferry::test {
namespace {

constexpr int kLonger = 1500;  // ms: than ranks that are left out are waited for

// Two rounds, each with its active ranks.
Scenario scenario_of(const Nodes& nodes, const std::vector<std::vector<int>>& active) {
  const ExchangeConfig config = {
      .max_tokens = 16, .hidden = 64, .num_experts = 12, .top_k = 2, .depth = 1};
  Scenario scenario = plain_scenario(static_cast<int>(nodes.of_rank.size()), config, 2, 82);
  for (std::size_t round = 0; round < active.size(); ++round) {
    for (internal::RankInput& input : scenario.rounds[round].inputs)
      input.active_ranks = active[round];
    expect_dispatch(config, scenario.rounds[round]);
  }
  return scenario;
}

// The rows of rank 1 come to the other node by rank 3, where they lie for a while. Rank 3 is left
// out of the next operation, in which rank 1 speaks to that node by rank 2.
TEST(ActiveSets, FlagsOfANewSetDoNotOvertakeRowsOfTheLast) {
  const Nodes nodes = nodes_of_sizes({2, 2});
  const Scenario scenario = scenario_of(nodes, {{}, {0, 1, 2}});
  HeldMessages rows{.origin = 1};
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

// Rank 2 takes the place of rank 1, which is stuck: what it tells their node of rank 0 is of an
// operation that comes after that whose rows rank 1 has not read.
TEST(ActiveSets, RankThatIsLeftBehindIsToldSo) {
  const Nodes nodes = nodes_of_sizes({1, 2});
  const Scenario scenario = scenario_of(nodes, {{0, 1}, {0, 2}});
  HeldMessages rows{.origin = 0};
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

}  // namespace
}  // namespace ferry::test
