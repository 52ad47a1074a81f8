// Two ways between the same nodes: rows and sums take both, and a wait for a rank is a wait for its
// data on each way.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "holding_transport.h"
#include "network/refusing_transport.h"
#include "seat.h"

namespace ferry::test {
namespace {

Scenario scenario_of(const Nodes& nodes) {
  const ExchangeConfig config = {.max_tokens = 16, .hidden = 64, .num_experts = 12, .top_k = 2};
  Scenario scenario = plain_scenario(static_cast<int>(nodes.of_rank.size()), config, 1, 82);
  for (auto& round : scenario.rounds) expect_dispatch(config, round);
  return scenario;
}

// Rank 0's mates are rank 2 (first way) and rank 3 (second way). Its rows are held back at rank 3,
// while its flags of the first way have long arrived at rank 2.
TEST(SecondWay, ItsRowsAreWaitedFor) {
  const Nodes nodes = nodes_of("host:2@also1xor,rank:2");
  Scenario scenario = scenario_of(nodes);
  HeldMessages rows{.source = 0, .channel = 2};
  run_while_held(nodes, rows, [&](Group group) {
    Seat seat(group, scenario);
    const Operation sent = seat.dispatch_send(0);
    if (group.rank() == 3) {
      // Rank 3 goes on serving rank 1, whose mate by the first way it is.
      for (int i = 0; i < kHeldMs; ++i, nap(1)) seat.exchange().poll(sent);
      rows.held.store(false, std::memory_order_release);
    }
    if (group.rank() == 2) {
      while (!seat.exchange().poll(sent)) nap(1);
      require(!rows.held.load(std::memory_order_acquire), "ready before rows of the second way");
    }
    seat.dispatch_recv(0, sent);
    require_ok(group.barrier(), "barrier");
  });
}

// One rank opens the first way and cannot connect the second; the others open both. All ranks
// destroy what they have. Messages of the next exchange arrive nevertheless.
TEST(SecondWay, ThatOneRankCannotConnectIsNoTroubleForTheNextExchange) {
  constexpr const char* kTopology = "host:2@also1xor,rank:2";
  const Scenario scenario = scenario_of(nodes_of(kTopology));
  std::atomic<int> refusals{0};
  const FrameTransports transports(
      [&] { return std::make_unique<RefusingTransport>(internal::ucx_transport(), refusals); });
  run_ranks(Mode::kThreads, 4,
            [&](Group group) {
              if (group.rank() == 0) refusals.store(1, std::memory_order_release);
              require_ok(group.barrier(), "barrier");
              const Status status = error_of([&] { Exchange(group, scenario.config); });
              require_status(status, status.code(), {"no endpoint is left"}, "the first exchange");
              Seat seat(group, scenario);
              const Operation sent = seat.dispatch_send(0);
              seat.dispatch_recv(0, sent);
              require_ok(group.barrier(), "barrier");
            },
            "", {.deadline = std::chrono::seconds(5), .topology = kTopology});
}

}  // namespace
}  // namespace ferry::test
