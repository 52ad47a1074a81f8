// The end of a group: a rank that leaves has sent everything that others wait for, and no rank
// waits for a timer.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "group/state.h"
#include "holding_transport.h"
#include "seat.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 4, kRounds = 5, kRepeats = 5;
constexpr int kLateMs = 1500;                  // longer than any wait for a rank that is left out
constexpr std::int64_t kMostNs = 500'000'000;  // milliseconds, on a busy machine too

Scenario scenario_of_nodes(int num_ranks = kRanks) {
  const ExchangeConfig config = {.max_tokens = 16,
                                 .hidden = 64,
                                 .num_experts = 8,
                                 .top_k = 2,
                                 .node_sums = NodeSums::kExact};  // as the oracle's one node
  return plain_scenario(num_ranks, config, kRounds, 81);
}

void play_all(const Group& group, const Scenario& scenario) {
  Seat seat(group, scenario);
  for (int round = 0; round < kRounds; ++round) {
    seat.play(round);
  }
}

// `end` returns the time that the end of a group took. The shortest of a few repeats must be short.
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

// One thread destroys the groups one after the other, so nobody else moves the messages of the
// ranks whose groups are still to be destroyed.
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

// Rank 1 asks rank 2 for sums; the flags of rank 2 come by way of rank 0. The flag that rank 2 has
// destroyed its exchange arrives while the last sums of rank 2 are still held back.
TEST(Leaving, FlagsThatSaySoDoNotOvertakeTheLastSums) {
  const Nodes nodes = nodes_of("rack:2,host:2+1,rank:1");
  const Scenario scenario = scenario_of_nodes(3);
  HeldMessages sums{.source = 1, .kind = internal::kSumReply, .number = 2};
  run_while_held(nodes, sums, [&](Group group) {
    Seat(group, scenario).play(0);
    if (group.rank() == 0) {
      for (int i = 0; i < kHeldMs; ++i, nap(1)) group.state()->progress();  // passes flags on
      sums.held.store(false, std::memory_order_release);
    }
    if (group.rank() == 1)
      require(!sums.held.load(std::memory_order_acquire), "the combine ended without its sums");
    require_ok(group.barrier(), "barrier");
  });
}

// Rank 0 sends its flags to rank 2 by the first way. Rank 3 learns by the second way that rank 0
// has left the group, while the last flags of rank 0 are still held back on their way to rank 2,
// which has already destroyed its exchange. Rank 3 goes on alone, and needs these flags.
TEST(Leaving, LastFlagsArriveAfterOthersTellThatTheirSenderLeft) {
  static constexpr std::array kAlone = {3};
  const Nodes nodes = nodes_of("host:2@also1xor,rank:2");
  const Scenario scenario = scenario_of_nodes();
  HeldMessages flags{.source = 0, .kind = internal::kFlags, .number = 2};
  std::atomic<bool> went_on{false};
  const auto pass_messages_on = [](const Group& group, const auto& done) {
    for (int i = 0; i < kLateMs && !done(i); ++i, nap(1)) group.state()->progress();
  };
  run_while_held(nodes, flags, [&](Group group) {
    const int rank = group.rank();
    std::optional<Seat> seat(std::in_place, group, scenario);
    seat->play(0);
    if (rank == 0) return;
    if (rank == 3) {
      DispatchCall call = seat->dispatch_call(1);
      call.args().active_ranks = kAlone;
      Received received;
      const std::int64_t began_ns = internal::now_ns();
      require_ok(seat->exchange().dispatch(call.args(), received), "dispatch of one rank");
      EXPECT_LT(internal::now_ns() - began_ns, kHeldMs * 1'000'000LL + kMostNs);
      went_on.store(true, std::memory_order_relaxed);
      return;
    }
    seat.reset();
    pass_messages_on(group, [&](int i) {
      if (i == kHeldMs) flags.held.store(false, std::memory_order_release);
      return went_on.load(std::memory_order_relaxed);
    });
  });
}

// One rank leaves at once, through which two others hear how far rank 0 is. Rank 0 keeps its part
// of the last operation open for a while. Then the two go on alone.
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

// Rank 0 wants to go on with rank 1 only, which has left. The part of ranks 2 and 3 in the last
// operation is still open. Rank 0 does not wait for that first, since no rank is left to go on
// with.
class LeavingWhoIsNeeded : public testing::TestWithParam<const char*> {};

TEST_P(LeavingWhoIsNeeded, IsToldAtOnce) {
  static constexpr std::array kTwo = {0, 1};
  const Scenario scenario = scenario_of_nodes();
  expect_short([&] {
    std::atomic<std::int64_t> told_ns{0};
    const auto body = [&](Group group) {
      Seat seat(group, scenario);
      const Operation sent = seat.dispatch_send(0);
      if (group.rank() > 1) {
        for (int i = 0; i < kLateMs && told_ns.load(std::memory_order_relaxed) == 0; ++i, nap(1))
          group.state()->progress();  // passes flags on
        return;
      }
      seat.dispatch_recv(0, sent);
      if (group.rank() == 1) return;
      nap(100);
      DispatchCall call = seat.dispatch_call(1);
      call.args().active_ranks = kTwo;
      Received received;
      const std::int64_t began_ns = internal::now_ns();
      const Status status = seat.exchange().dispatch(call.args(), received);
      require_status(status, Code::kPeerLost, {"rank 1", "has left the group"}, "dispatch");
      told_ns.store(internal::now_ns() - began_ns, std::memory_order_relaxed);
    };
    run_threads(kRanks, body, {.topology = GetParam()});
    return told_ns.load(std::memory_order_relaxed);
  });
}

INSTANTIATE_TEST_SUITE_P(Nodes, LeavingWhoIsNeeded,
                         testing::Values("rank:4", "host:2,rank:1+3", "host:2,rank:2"),
                         [](const auto& info) { return std::to_string(info.index); });

}  // namespace
}  // namespace ferry::test
