// A group begins with some of its ranks and grows when the others come: what comes out of its
// operations equals the oracle before and after.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "ferry/collectives.h"
#include "victim.h"
#include "view_rounds.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 4, kAll = (1 << kRanks) - 1;

bool is_in(int set, int rank) { return (set >> rank & 1) != 0; }

// Every rank has experts, and those of absent ranks get no rows.
ExchangeConfig config_of_all() {
  ExchangeConfig config = fault_config();
  config.expert_ranks = {0, 1, 2, 3};
  return config;
}

void gather(Group& group) {
  std::vector<int> all(kRanks, -1), wanted(kRanks);
  const int mine = group.rank() + 10;
  for (const int rank : group.view().members) wanted[rank] = rank + 10;
  require_ok(group.all_gather(&mine, sizeof mine, all.data()), "all_gather");
  require(all == wanted, "all_gather");
  Collectives collectives(group);
  require_ok(collectives.barrier(), "collectives");
}

// One process of a group that begins with the ranks in the set of bits `first`.
class Growing {
 public:
  Growing(const Scenario& scenario, const SharedBoard& board, int first)
      : scenario_(scenario), board_(board), first_(first) {}

  void run(Group group) const {
    require(group.size() == kRanks, "size");
    std::optional<Seat> seat;
    if (is_in(first_, group.rank()))
      begin(group, seat);
    else
      seat.emplace(group, scenario_, Exchange::join(group, scenario_.config));
    play(group, *seat, 2, kAll);
    Seat other(group, scenario_);
    play(group, other, 2, kAll);
    lose_one(group, *seat);
  }

 private:
  static void play(Group& group, Seat& seat, std::uint64_t number, int set) {
    require(group.view().number == number && set_of(group.view()) == set, "view");
    for (int i = 0; i < 3; ++i)
      require_ok(play_view(group, seat), "view " + std::to_string(number));
    gather(group);
  }

  void begin(Group& group, std::optional<Seat>& seat) const {
    seat.emplace(group, scenario_);
    play(group, *seat, 1, first_);
    refuse_absent(*seat);
    const int present[] = {group.view().members[0]};
    require_status(group.admit(present), Code::kInvalidArgument, {"is in view 1"}, "here");
    require_ok(group.admit(), "admit");
  }

  // Experts of absent ranks are refused by name.
  static void refuse_absent(Seat& seat) {
    DispatchCall call = seat.dispatch_call(kAll);
    call.args().active_ranks = {};
    Received received;
    const Status status = seat.exchange().dispatch(call.args(), received);
    const bool mine = status.code() == Code::kInvalidArgument;
    require_status(status, mine ? Code::kInvalidArgument : Code::kPeerRejected,
                   {"is of a rank that the view lacks"}, "absent");
  }

  // A newcomer is killed. The ranks that are left must be more than half of all.
  void lose_one(Group& group, Seat& seat) const {
    int victim = 0;
    while (victim + 1 < kRanks && is_in(first_, victim)) ++victim;
    require_ok(group.barrier(), "barrier");
    if (group.rank() == victim) strike_self(*board_, SIGKILL);
    const Status lost = play_until_error(group, seat);
    require_status(lost, Code::kPeerLost, {"rank " + std::to_string(victim)}, "killed");
    survive(group, 3, kAll & ~(1 << victim));
    play(group, seat, 3, kAll & ~(1 << victim));
  }

  const Scenario& scenario_;
  const SharedBoard& board_;
  const int first_;
};

class GrowsFrom : public testing::TestWithParam<std::vector<int>> {};

TEST_P(GrowsFrom, SomeOfItsRanks) {
  const Scenario scenario = scenario_of_sets(kRanks, config_of_all(), 110);
  const SharedBoard board;
  const Growing part(scenario, board, set_of({.members = GetParam()}));
  const GroupOptions options{.deadline = std::chrono::seconds(20), .members = GetParam()};
  ProcessRanks ranks(kRanks, options, [&](Group group) { part.run(std::move(group)); });
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(40));
  std::erase_if(ends, [](const RankEnd& end) { return end.signal == SIGKILL; });
  EXPECT_EQ(ends.size(), kRanks - 1U);
  expect_all_well(ends, testing::PrintToString(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(First, GrowsFrom,
                         testing::Values(std::vector{0}, std::vector{3}, std::vector{0, 2},
                                         std::vector{2, 3}, std::vector{1, 2, 3}));

// Ranks come one after the other; each admission begins a view of its own.
TEST(Grow, OneAfterTheOther) {
  const Scenario scenario = scenario_of_sets(kRanks, config_of_all(), 111);
  const GroupOptions options{.deadline = std::chrono::seconds(20), .members = {1}};
  ProcessRanks ranks(kRanks, options, [&](Group group) {
    std::optional<Seat> seat;
    if (group.view().number == 1)
      seat.emplace(group, scenario);
    else
      seat.emplace(group, scenario, Exchange::join(group, scenario.config));
    while (true) {
      for (int i = 0; i < 3; ++i) require_ok(play_view(group, *seat), "play");
      const int set = set_of(group.view());
      if (set == kAll) break;
      int next = 0;
      while (is_in(set, next)) ++next;
      require_ok(group.admit({&next, 1}), "admit " + std::to_string(next));
    }
    require(group.view().number == kRanks, "a view for each");
  });
  expect_all_well(ranks.wait(std::chrono::seconds(40)), "one after the other");
}

// Rank 2 is late: the others wait until an admission begins a view with it.
TEST(Grow, NewcomersWaitForAnAdmissionThatIsRepeated) {
  const GroupOptions options{.deadline = std::chrono::seconds(20), .members = {0}};
  const auto body = [](Group group) {
    Status status;
    if (group.view().number == 1) {
      do status = group.admit({}, std::chrono::milliseconds(200));
      while (status.code() == Code::kPeerRejected);
    }
    require_ok(status, "admit");
    require(group.view().number == 2 && set_of(group.view()) == kAll, "view 2");
    require_ok(group.barrier(), "barrier");
  };
  ProcessRanks ranks(kRanks, options, body);
  ranks.send_signal(2, SIGKILL);
  nap(1000);
  ranks.come_back(2, options, body);
  expect_all_well(ranks.wait(std::chrono::seconds(40)), "a late newcomer");
}

TEST(Grow, WhatIsRefused) {
  const auto connected = [](std::vector<int> members, int rank) {
    const GroupOptions options{.deadline = std::chrono::milliseconds(300), .members = members};
    return error_of([&] { Group::connect("grow-refused", rank, 3, options); });
  };
  for (const std::vector<int>& wrong :
       {std::vector{1, 0}, std::vector{0, 0}, std::vector{-1}, std::vector{0, 3}})
    require_status(connected(wrong, 0), Code::kInvalidArgument, {"ascending ranks from 0 to 2"},
                   testing::PrintToString(wrong));
  require_status(connected({0, 1}, 2), Code::kTimeout, {"a member that admits others"}, "alone");
  const GroupOptions some{.members = {0}};
  require_status(error_of([&] { Group::threads(2, some); }), Code::kInvalidArgument,
                 {"threads begin a group together"}, "threads");
  const AllGather none = [](const void*, void*, std::size_t) { return false; };
  require_status(error_of([&] { Group::from_all_gather(0, 2, none, some); }),
                 Code::kInvalidArgument, {"all-gather begin a group together"}, "all-gather");
}

// The ranks of a group have to begin with the same ones.
TEST(Grow, OtherMembersOnOneRankAreNamed) {
  const GroupOptions options{.deadline = std::chrono::seconds(5), .members = {0, 1}};
  const std::string address = "grow-members-" + std::to_string(getpid());
  run_ranks(Mode::kProcesses, 2, [&](Group others) {
    GroupOptions mine = options;
    if (others.rank() == 1) mine.members = {0, 1, 2};
    require_status(error_of([&] { Group::connect(address, others.rank(), 4, mine); }),
                   Code::kMismatch, {"different ranks that the group begins with", "ranks 0 to 2"},
                   "members");
  });
}

}  // namespace
}  // namespace ferry::test
