// The number of messages of an exchange between nodes, each of which costs both sides a system
// call, and the bytes of rows that it counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "group/state.h"
#include "seat.h"

namespace ferry::test {
namespace {

// A dispatch takes two messages: the record; the rows, with the flag that all are delivered. A
// combine takes three: the record with the sum request; the sums; the flag of its end. The flag of
// the dispatch's end comes with the record of the combine.
constexpr std::uint64_t kOfARound = 5;

TEST(MessageCounts, OfARoundBetweenTwoNodes) {
  constexpr int kRounds = 3;
  const ExchangeConfig config = {.max_tokens = 16,
                                 .hidden = 64,
                                 .num_experts = 4,
                                 .top_k = 2,
                                 .node_sums = NodeSums::kExact};  // as the oracle's one node
  const Scenario scenario = plain_scenario(2, config, kRounds, 83);
  const std::string topology = "host:2,rank:1";
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    const auto sent = [&] { return group.state()->messages().traffic()[1 - group.rank()].queued; };
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t before = sent();
      seat.play(round);
      const std::uint64_t messages = sent() - before;
      if (round + 1 == kRounds) break;  // the other rank may have left, which is answered
      require(messages == kOfARound, fmt::format("round {} took {} messages", round, messages));
    }
  };
  run_ranks(Mode::kThreads, 2, body, topology, {.topology = topology});
}

// How many rows a rank sends to the other one of two ranks, each of which has two experts.
std::uint64_t num_sent_across(const Scenario& scenario, int rank) {
  const std::vector<std::int64_t>& ids = scenario.rounds[0].inputs[rank].topk_ids;
  return std::ranges::count_if(ids, [rank](std::int64_t id) { return id >= 0 && id / 2 != rank; });
}

// A row of fp8 has a scale for each 128 elements.
TEST(MessageCounts, ScalesOfRowsAreCounted) {
  const ExchangeConfig config = {
      .max_tokens = 16, .hidden = 256, .num_experts = 4, .top_k = 1, .wire = Wire::kFp8};
  const Scenario scenario = plain_scenario(2, config, 1, 84);
  const std::string topology = "host:2,rank:1";
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    seat.dispatch(0);
    const std::uint64_t crossed = num_sent_across(scenario, group.rank());
    require(crossed > 0, "rows cross");
    const std::uint64_t bytes = seat.exchange().stats().link_row_bytes;
    require(bytes == crossed * (256 + 2 * sizeof(float)),
            fmt::format("{} bytes of {} rows", bytes, crossed));
    require_ok(group.barrier(), "barrier");
  };
  run_ranks(Mode::kThreads, 2, body, topology, {.topology = topology});
}

// With one expert for each token a sum has one summand, and crosses as one row.
TEST(MessageCounts, RowsOfSumsAreCounted) {
  const ExchangeConfig config = {
      .max_tokens = 16, .hidden = 256, .num_experts = 4, .top_k = 1, .node_sums = NodeSums::kExact};
  const Scenario scenario = plain_scenario(2, config, 1, 85);
  const std::string topology = "host:2,rank:1";
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    seat.play(0);
    require_ok(group.barrier(), "all replies are written");
    const std::uint64_t crossed = num_sent_across(scenario, 0) + num_sent_across(scenario, 1);
    const std::uint64_t bytes = seat.exchange().stats().link_row_bytes;
    require(bytes == crossed * 256 * sizeof(std::uint16_t),
            fmt::format("{} bytes of {} rows", bytes, crossed));
  };
  run_ranks(Mode::kThreads, 2, body, topology, {.topology = topology});
}

}  // namespace
}  // namespace ferry::test
