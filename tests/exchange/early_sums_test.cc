// Between nodes, tokens whose sums have arrived are reduced while sums of other tokens are in
// flight.
#include <gtest/gtest.h>

#include <algorithm>

#include "early_rows.h"
#include "holding_transport.h"
#include "seat.h"

namespace ferry::test {
namespace {

// Rows of early tokens are of the ranks of the first rack.
Scenario scenario_of(const Nodes& nodes, const ExchangeConfig& config) {
  const auto num_ranks = static_cast<int>(nodes.of_rank.size());
  Scenario scenario = plain_scenario(num_ranks, config, 1, 89);
  Random random(89, 9);
  Round& round = scenario.rounds[0];
  for (int rank = 0; rank < num_ranks; ++rank) {
    round.inputs[rank].topk_ids = early_ids(config, rank, 2);
    nodes.place(rank, round.inputs[rank]);
  }
  expect_dispatch(config, round);
  round.combines = {random_combine(config, round, config.hidden, config.dtype, random)};
  return scenario;
}

// The sums that rank 0 gets from the other rack, by one way, are kept back until its early tokens
// are reduced.
void run_with_late_sums(const std::string& topology, ExchangeConfig config,
                        std::uint32_t channel = 1) {
  config.algorithm = Algorithm::kHierarchical;
  const Nodes nodes = nodes_of(topology);
  const Scenario scenario = scenario_of(nodes, config);
  HeldMessages sums{.source = 0, .channel = channel, .kind = internal::kSumReply, .number = 2};
  const FrameTransports transports([&sums] { return std::make_unique<HoldingTransport>(sums); });
  GroupOptions options = that_look();
  options.topology = topology;
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    const Received received = seat.dispatch(0);
    CombineCall call = seat.combine_call(0, received.handle);
    const Rows rows(call, scenario.rounds[0].combines[0], seat.rank());
    while_waiting = [&] {
      if (rows.early_ones_are_done()) sums.held.store(false, std::memory_order_release);
    };
    if (seat.rank() != 0) while_waiting = nullptr;
    const Status status = seat.exchange().combine(call.args());
    while_waiting = nullptr;
    require_ok(status, "combine");
    call.check("with late sums");
    const std::vector<OperationTimes::Span>& spans = seat.exchange().last_combine_times().spans;
    const auto phases = [&](const std::string& phase) {
      return std::ranges::count(spans, phase, [](const auto& span) { return span.phase; });
    };
    if (seat.rank() == 0)
      require(phases("sums") >= 2 && phases("reduce") >= 2, "no tokens between sums");
    require_ok(group.barrier(), "barrier");
  };
  run_ranks(Mode::kThreads, static_cast<int>(nodes.of_rank.size()), body, topology, options);
}

TEST(EarlySums, AreReducedWhileOthersAreUnderWay) {
  for (const int workers : {1, 3}) {
    for (const NodeSums node_sums : {NodeSums::kRowType, NodeSums::kExact}) {
      ExchangeConfig config = early_config();
      config.workers = workers;
      config.node_sums = node_sums;
      run_with_late_sums("rack:2,host:2,rank:1", config);
    }
  }
}

// Odd tokens take the second way. Two experts on each rank.
TEST(EarlySums, OfTwoWays) {
  ExchangeConfig config = early_config();
  config.num_experts = 16;
  run_with_late_sums("rack:2@also2xor,host:2,rank:2", config, 2);
}

}  // namespace
}  // namespace ferry::test
