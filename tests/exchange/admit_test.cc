// Processes take the places of ranks that were killed, and what comes out of the operations of the
// whole group equals the oracle again.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/collectives.h"
#include "victim.h"
#include "view_rounds.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 4, kAll = (1 << kRanks) - 1;
const GroupOptions kOptions{.deadline = std::chrono::seconds(20)};

bool on_one_node() { return !test_nodes(kRanks).several(); }

// Two rounds of a view that lacks ranks, if all of its ranks have the exchange.
void play_without_some(Group& group, std::optional<Seat>& seat) {
  std::vector<int> have(kRanks);
  const int mine = seat ? 1 : 0;
  if (!group.all_gather(&mine, sizeof mine, have.data()).ok()) return;
  const auto has = [&](int rank) { return have[rank] == 1; };
  if (!std::ranges::all_of(group.view().members, has)) return;
  for (int i = 0; i < 2; ++i)
    if (!play_view(group, *seat).ok()) return;
}

// Calls survive() and admit() until the view has all ranks and is usable. Ranks may be lost at any
// moment.
void go_on_with_all(Group& group, std::optional<Seat>& seat) {
  while (set_of(group.view()) != kAll || !group.usable()) {
    if (!group.usable()) {
      require_ok(group.survive(), "survive");
      play_without_some(group, seat);
    }
    const Status status = group.admit();
    if (status.code() == Code::kPeerLost || status.code() == Code::kBroken)
      require_ok(group.survive(), "survive");
    else if (status.code() != Code::kPeerRejected)
      require_ok(status, "admit");
  }
}

// What the processes of a test share.
struct Shared {
  std::atomic<int> stop{0};
  std::atomic<int> num_joins{0};            // newcomers that joined the exchange of the members
  std::atomic<int> is_member[kRanks] = {};  // the process of the rank has been in a view of all
  int num_members() const {
    return static_cast<int>(std::ranges::count(
        is_member, 1, [](auto& one) { return one.load(std::memory_order_relaxed); }));
  }
  void await_members(int patience_ms) const {
    for (int i = 0; i < patience_ms && num_members() < kRanks; ++i) usleep(1000);
  }
};

// Plays in the views of a group, with one exchange as long as the ranks have it.
class Playing {
 public:
  Playing(Group& group, const Scenario& scenario, Shared& shared)
      : group_(group), scenario_(scenario), shared_(shared) {}

  // Plays in a view of all ranks until a rank is lost (false) or the test ends (true).
  bool until_loss() {
    try {
      begin();
      while (group_.usable()) {
        std::vector<int> stops(kRanks);
        const int mine = shared_.stop.load(std::memory_order_relaxed);
        if (!group_.all_gather(&mine, sizeof mine, stops.data()).ok()) break;
        if (std::ranges::count(stops, 1) > 0) return true;
        if (!play_view(group_, *seat_).ok()) break;
      }
    } catch (const Error& error) {  // the exchange could not be made
      require(error.code() == Code::kPeerLost || error.code() == Code::kBroken, error.what());
    }
    return false;
  }

  std::optional<Seat>& seat() { return seat_; }

 private:
  // All ranks come to have the same exchange: the former one, if all have it or join it, or else a
  // new one.
  void begin() {
    if (!seat_) join();
    if (seat_ && play_view(group_, *seat_).code() == Code::kMismatch) seat_.reset();
    if (!seat_) seat_.emplace(group_, scenario_);
  }

  void join() {
    try {
      seat_.emplace(group_, scenario_, Exchange::join(group_, scenario_.config));
      shared_.num_joins.fetch_add(1, std::memory_order_relaxed);
    } catch (const Error& error) {
      require(error.code() == Code::kInvalidArgument, error.what());
    }
  }

  Group& group_;
  const Scenario& scenario_;
  Shared& shared_;
  std::optional<Seat> seat_;
};

// Ranks are killed at any moment, also while killed ranks come back, but at least one member stays
// alive. Between nodes more than half of the members must live, so while ranks are missing only the
// last victim is killed again.
void kill_and_come_back(int kills, std::uint64_t seed) {
  const Scenario scenario = scenario_of_sets(kRanks, fault_config(), seed);
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Shared& shared = *new (memory) Shared;
  const auto body = [&](Group group) {
    Playing playing(group, scenario, shared);
    do {
      go_on_with_all(group, playing.seat());
      shared.is_member[group.rank()].store(1, std::memory_order_relaxed);
    } while (!playing.until_loss());
  };
  ProcessRanks ranks(kRanks, kOptions, body);
  shared.await_members(10000);
  Random random(seed, 7);
  int victim = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const bool waits = random.below(4) > 0 || kill == 0;
    if (waits) shared.await_members(10000);
    usleep(static_cast<useconds_t>(random.below(20000)));
    const int drawn = static_cast<int>(random.below(kRanks));
    if (waits || on_one_node()) victim = drawn;
    if (shared.num_members() - shared.is_member[victim].load(std::memory_order_relaxed) == 0)
      continue;
    ranks.send_signal(victim, SIGKILL);
    siginfo_t ended;
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(ranks.pid(victim)), &ended, WEXITED | WNOWAIT), 0);
    shared.is_member[victim].store(0, std::memory_order_relaxed);
    if (random.below(4) == 0) usleep(static_cast<useconds_t>(random.below(20000)));
    ranks.come_back(victim, kOptions, body);
  }
  shared.await_members(10000);
  EXPECT_EQ(shared.num_members(), kRanks);
  shared.stop.store(1, std::memory_order_relaxed);
  expect_all_well(ranks.wait(std::chrono::seconds(30)), "seed " + std::to_string(seed));
  EXPECT_GE(shared.num_joins.load(std::memory_order_relaxed), kills / 4);
  munmap(memory, sizeof(Shared));
}

// A topology other than that of the test.
std::string other_topology() {
  const bool two_nodes = test_nodes(kRanks).of_rank == std::vector{0, 0, 1, 1};
  return two_nodes ? "host:4,rank:1" : "host:2,rank:2";
}

// Runs `body` in a process of its own, which is not one of the ranks. Returns its process id.
pid_t apart(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  std::string failure;
  try {
    body();
  } catch (const std::exception& error) {
    failure = error.what();
    std::fprintf(stderr, "apart: %s\n", failure.c_str());
  }
  _exit(failure.empty() ? 0 : 1);
}

void expect_well(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// One process of WhatIsRefused; its phases are those of the board.
class Refusing {
 public:
  Refusing(const Scenario& scenario, Board& board) : scenario_(scenario), board_(board) {}

  void member(Group group) const {
    Seat seat(group, scenario_);
    std::optional<Exchange> other(std::in_place, group, other_config());
    require_ok(play_view(group, seat), "all");
    require_status(group.admit(), Code::kInvalidArgument, {"view 1 has all 4 ranks"}, "full");
    require_ok(group.barrier(), "barrier");
    if (group.rank() == 2) strike_self(board_, SIGKILL);
    require_status(play_until_error(group, seat), Code::kPeerLost, {"rank 2"}, "killed");
    require_status(group.admit(), Code::kBroken, {"rank 2"}, "before survive()");
    survive(group, 2, kAll & ~4);
    refuse_arguments(group);
    refuse_newcomers(group);
    phase(group, 3);
    if (group.rank() == 1) other.reset();  // so it is not offered
    require_ok(group.admit(kOne), "admit");
    require_status(error_of([&] { Exchange::join(group, scenario_.config); }),
                   Code::kInvalidArgument, {"that rank", "may join in view 3"}, "a member joins");
    for (int i = 0; i < 3; ++i) require_ok(play_view(group, seat), "exchange of view 1");
    all_again(group);
  }

  void newcomer(Group group) const {
    const ExchangeConfig other = other_config();
    require_status(error_of([&] { Exchange::join(group, other); }), Code::kInvalidArgument,
                   {"no exchange with this configuration that rank 2 may join in view 3",
                    "hidden is " + std::to_string(other.hidden)},
                   "another configuration");
    Seat seat(group, scenario_, Exchange::join(group, scenario_.config));
    require_status(error_of([&] { Exchange::join(group, scenario_.config); }),
                   Code::kInvalidArgument, {"rank 2 may join in view 3"}, "joined twice");
    for (int i = 0; i < 3; ++i) require_ok(play_view(group, seat), "exchange of view 1");
    all_again(group);
  }

  void all_again(Group group) const {
    require(group.view().number == 3 && set_of(group.view()) == kAll && group.usable(), "view 3");
    Seat seat(group, scenario_);
    for (int i = 0; i < 3; ++i) require_ok(play_view(group, seat), "all again");
    Collectives collectives(group);
    require_ok(collectives.barrier(), "collectives");
    std::vector<int> ranks(kRanks);
    const int mine = group.rank() + 10;
    require_ok(group.all_gather(&mine, sizeof mine, ranks.data()), "all_gather");
    require(ranks == std::vector<int>{10, 11, 12, 13}, "all_gather");
  }

  void await(int number) const {
    for (int i = 0; i < 20000 && board_.ready.load(std::memory_order_relaxed) < number; ++i)
      usleep(1000);
  }

 private:
  static constexpr int kOne[] = {2};

  ExchangeConfig other_config() const {
    ExchangeConfig config = scenario_.config;
    config.hidden *= 2;
    return config;
  }

  void phase(Group& group, int number) const {
    require_ok(group.barrier(), "phase");
    if (group.rank() == 0) board_.ready.store(number, std::memory_order_relaxed);
  }

  static void refuse_arguments(Group& group) {
    const int present[] = {1}, none[] = {4};
    require_status(group.admit(present), Code::kInvalidArgument, {"rank 1 is in view 2"}, "here");
    require_status(group.admit(none), Code::kInvalidArgument, {"rank 4"}, "no such rank");
    const Status status = group.admit(group.rank() == 0 ? std::span<const int>(none) : kOne);
    if (group.rank() == 0)
      require_status(status, Code::kInvalidArgument, {"rank 4"}, "mine");
    else
      require_status(status, Code::kPeerRejected, {"rank 0 refused", "rank 4"}, "theirs");
  }

  void refuse_newcomers(Group& group) const {
    require_status(group.admit({}, std::chrono::milliseconds(200)), Code::kPeerRejected,
                   {"view 2 goes on", "rank 2", "did not come to"}, "no newcomer");
    require(group.usable() && group.view().number == 2, "view 2 goes on");
    phase(group, 1);
    require_status(group.admit({}, std::chrono::seconds(3)), Code::kPeerRejected,
                   {"view 2 goes on", "rank 2", "did not come to"}, "another rank");
    phase(group, 2);
    require_status(group.admit(), Code::kMismatch, {"different topologies", "rank 2"},
                   "another topology");
  }

  const Scenario& scenario_;
  Board& board_;
};

// Rank 2 is killed, and the others refuse by name whatever is not right. Then it comes back.
TEST(Admit, WhatIsRefused) {
  const Scenario scenario = scenario_of_sets(kRanks, fault_config(), 96);
  const SharedBoard board;
  const Refusing part(scenario, *board);
  ProcessRanks ranks(kRanks, kOptions, [&](Group group) { part.member(group); });
  const auto newcomer = [&](int rank, const std::string& topology) {
    GroupOptions options{.deadline = std::chrono::seconds(rank == 2 ? 20 : 1), .newcomer = true};
    options.topology = topology;
    options = on_test_nodes(options, kRanks);
    return error_of([&] { Group::connect(ranks.address(), rank, kRanks, options); });
  };
  part.await(1);
  expect_well(apart([&] {
    require_status(newcomer(1, ""), Code::kTimeout,
                   {"claims to be rank 1", "rank 0 of 4 waits for rank 2"}, "another");
  }));
  part.await(2);
  expect_well(apart([&] {
    require_status(newcomer(2, other_topology()), Code::kMismatch, {"topologies"}, "another");
  }));
  part.await(3);
  ranks.come_back(2, kOptions, [&](Group group) { part.newcomer(group); });
  expect_all_well(ranks.wait(std::chrono::seconds(40)), "refusals");
}

// A newcomer that nobody admits waits until its deadline.
TEST(Admit, NobodyAdmits) {
  const GroupOptions options{.deadline = std::chrono::milliseconds(200), .newcomer = true};
  const Status status = error_of([&] { Group::connect("nobody-admits", 1, 2, options); });
  require_status(status, Code::kTimeout, {"a member that admits others", "rank 1"}, "alone");
}

// Rank 2 destroys its exchange and leaves. The process that takes its place joins the exchange of
// the members. Without `joins`, the members destroy that exchange and all ranks make another one.
void leave_and_come_back(Algorithm algorithm, bool joins) {
  ExchangeConfig config = fault_config();
  config.algorithm = algorithm;
  const Scenario scenario = scenario_of_sets(kRanks, config, 97);
  const auto all = [&](Group& group, std::optional<Seat>& seat) {
    if (!joins) seat.reset(), seat.emplace(group, scenario);
    for (int i = 0; i < 3; ++i) require_ok(play_view(group, *seat), "all again");
    require_ok(group.barrier(), "barrier");
  };
  ProcessRanks ranks(kRanks, kOptions, [&](Group group) {
    std::optional<Seat> seat(std::in_place, group, scenario);
    require_ok(play_view(group, *seat), "all");
    if (group.rank() != 2) {
      require_status(play_until_error(group, *seat), Code::kPeerLost, {"rank 2"}, "left");
      survive(group, 2, kAll & ~4);
      require_ok(group.admit(), "admit");
      return all(group, seat);
    }
    seat.reset();
    group.destroy();
  });
  ranks.come_back(2, kOptions, [&](Group group) {
    std::optional<Seat> seat;
    if (joins) seat.emplace(group, scenario, Exchange::join(group, scenario.config));
    all(group, seat);
  });
  expect_all_well(ranks.wait(std::chrono::seconds(40)), name_of(algorithm));
}

TEST(Admit, ARankThatLeftComesBack) {
  for (const bool joins : {true, false}) {
    leave_and_come_back(Algorithm::kFullmesh, joins);
    if (!on_one_node()) leave_and_come_back(Algorithm::kHierarchical, joins);
  }
}

TEST(Admit, ThreadsAreRefused) {
  run_ranks(Mode::kThreads, kRanks, [](Group group) {
    require_status(group.admit(), Code::kInvalidArgument, {"threads"}, "admit");
    require_ok(group.barrier(), "barrier");
  });
}

TEST(Admit, KilledRanksComeBack) {
  kill_and_come_back(std::max(10, static_cast<int>(60 * stress_scale())), 1000);
}

}  // namespace
}  // namespace ferry::test
