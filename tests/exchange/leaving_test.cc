// How a group ends: a rank that leaves owes nothing, and no rank waits for a timer.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "base/clock.h"
#include "seat.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 4, kRounds = 5, kRepeats = 5;
constexpr std::int64_t kMostNs = 500'000'000;  // milliseconds, on a busy machine too

Scenario scenario_of_nodes() {
  const ExchangeConfig config = {.max_tokens = 16,
                                 .hidden = 64,
                                 .num_experts = 8,
                                 .top_k = 2,
                                 .node_sums = NodeSums::kExact};  // as the oracle's one node
  return plain_scenario(kRanks, config, kRounds, 81);
}

void play_all(const Group& group, const Scenario& scenario) {
  Seat seat(group, scenario);
  for (int round = 0; round < kRounds; ++round) {
    seat.play(round);
  }
}

// The shortest of a few ends, each from before the last call of `end` began until it returned.
template <typename End>
void expect_short(const End& end) {
  std::int64_t least_ns = std::numeric_limits<std::int64_t>::max();
  for (int repeat = 0; repeat < kRepeats; ++repeat) least_ns = std::min(least_ns, end());
  EXPECT_LT(least_ns, kMostNs);
}

TEST(Leaving, EachRankAfterItsLastCombine) {
  const Scenario scenario = scenario_of_nodes();
  const GroupOptions options = {.topology = "host:2,rank:2"};
  expect_short([&] {
    std::array<std::int64_t, kRanks> played_ns{};
    const auto body = [&](Group group) {
      const int rank = group.rank();
      play_all(group, scenario);
      played_ns[rank] = internal::now_ns();
    };
    run_threads(kRanks, body, options);
    return internal::now_ns() - *std::min_element(played_ns.begin(), played_ns.end());
  });
}

// Nobody else moves the messages of the ranks that are still to leave.
TEST(Leaving, OneThreadDestroysTheGroupsOfAllRanks) {
  const Scenario scenario = scenario_of_nodes();
  const GroupOptions options = {.topology = "host:2,rank:2"};
  expect_short([&] {
    std::vector<Group> groups = Group::threads(kRanks, options);
    std::vector<std::thread> threads;
    for (const Group& group : groups) threads.emplace_back([&] { play_all(group, scenario); });
    for (std::thread& thread : threads) thread.join();
    const std::int64_t began_ns = internal::now_ns();
    for (Group& group : groups) group.destroy();
    return internal::now_ns() - began_ns;
  });
}

// A rank leaves at once, and two others hear by it how far rank 0 is, which keeps its part of the
// last operation open for a while. Then the two go on alone.
struct PassedOn {
  const char* topology;
  int leaver;
  std::vector<int> others;
};

class LeavingWhatComes : public testing::TestWithParam<PassedOn> {};

TEST_P(LeavingWhatComes, StillArrives) {
  const Scenario scenario = scenario_of_nodes();
  const auto& [topology, leaver, others] = GetParam();
  const GroupOptions options = {.topology = topology};
  expect_short([&, leaver = leaver, others = others] {
    std::array<std::int64_t, kRanks> taken_ns{};
    const auto body = [&](Group group) {
      const int rank = group.rank();
      Seat seat(group, scenario);
      const Operation sent = seat.dispatch_send(0);
      if (rank == 0) nap(100);
      Received received = seat.dispatch_recv(0, sent);
      if (std::ranges::find(others, rank) == others.end()) return;
      const std::int64_t began_ns = internal::now_ns();
      DispatchCall call = seat.dispatch_call(1);
      call.args().active_ranks = others;
      require_ok(seat.exchange().dispatch(call.args(), received), "dispatch of two ranks");
      taken_ns[rank] = internal::now_ns() - began_ns;
    };
    run_threads(kRanks, body, options);
    return *std::max_element(taken_ns.begin(), taken_ns.end());
  });
}

INSTANTIATE_TEST_SUITE_P(Nodes, LeavingWhatComes,
                         testing::Values(PassedOn{"host:2,rank:2", 2, {1, 3}},
                                         PassedOn{"rack:2,host:1+3,rank:1", 1, {2, 3}}),
                         [](const auto& info) { return info.index == 0 ? "hosts" : "racks"; });

}  // namespace
}  // namespace ferry::test
