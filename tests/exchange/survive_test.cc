// Ranks die or leave, the others go on in the next view of the group with the same exchange, and
// what comes out of its operations equals the oracle of the ranks that remain.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/collectives.h"
#include "victim.h"
#include "view_rounds.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 4;

void require_view_over(const Status& status, int number, int lost) {
  require_status(status, Code::kPeerLost,
                 {"view " + std::to_string(number) + " is over, lost rank " + std::to_string(lost)},
                 "after a death");
  require(status.culprit() == lost && !status.group_usable(), status.message());
}

enum class Moment { kIdle, kBeforeCounts, kWhileWritingRows, kBeforeOutputs, kWhileReading };

struct Death {
  const char* name;
  Moment moment;
  int victim;
};

void PrintTo(const Death& death, std::ostream* stream) { *stream << death.name; }

[[noreturn]] void die(const Group& group, Seat& seat, Moment moment, const Scenario& scenario,
                      Board& board, int signal = SIGKILL) {
  const int all = set_of(group.view());
  const std::vector<std::byte>& tokens = scenario.rounds[all].inputs[seat.rank()].tokens;
  Trap trap(tokens.size(), board, signal);
  DispatchCall dispatch = seat.dispatch_call(all);
  if (moment == Moment::kWhileWritingRows) {
    std::memcpy(trap.data(), tokens.data(), tokens.size());
    dispatch.args().tokens.data = trap.data();
    dispatch.args().tokens.pitch_bytes = scenario.config.hidden * 2;
    trap.arm();
  }
  if (moment == Moment::kIdle) nap(30);
  if (moment == Moment::kIdle || moment == Moment::kBeforeCounts) strike_self(board, signal);
  Received received;
  static_cast<void>(seat.exchange().dispatch(dispatch.args(), received));
  if (moment == Moment::kBeforeOutputs) strike_self(board, signal);
  CombineCall combine = seat.combine_call(all, received.handle);
  combine.args().out = trap.data();
  combine.args().out_dtype = DataType::kBf16;
  combine.args().out_pitch_bytes = 0;
  combine.args().bias = {};
  trap.arm();
  static_cast<void>(seat.exchange().combine(combine.args()));
  throw Failure("the victim is alive");
}

bool on_one_node() { return !test_nodes(kRanks).several(); }

// Whether the ranks of `set` can go on without the other ranks of `view`, which are dead.
bool may_go_on(int view, int set) {
  const std::vector<int> nodes = test_nodes(kRanks).of_rank;
  int reached = 0;  // the ranks on nodes that have a rank of `set`
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int other = 0; other < kRanks; ++other)
      if ((view >> rank & 1) && (set >> other & 1) && nodes[other] == nodes[rank])
        reached |= 1 << rank;
  }
  const int votes = std::popcount(unsigned(reached)), all = std::popcount(unsigned(view));
  const int lowest = view & -view;
  return 2 * votes > all || (2 * votes == all && (reached & lowest) != 0);
}

class SurviveDeath : public testing::TestWithParam<Death> {};

// One rank dies. In the next view another one dies, and in the view after that rank 2 leaves.
TEST_P(SurviveDeath, TheOthersGoOn) {
  const auto& [name, moment, victim] = GetParam();
  const Scenario scenario = scenario_of_sets(kRanks, fault_config(), 91);
  const SharedBoard board;
  const int all = (1 << kRanks) - 1, three = all & ~(1 << victim), other = victim == 1 ? 0 : 1;
  ProcessRanks ranks(kRanks, {}, [&, victim = victim, moment = moment](Group group) {
    Seat seat(group, scenario);
    require_ok(play_view(group, seat), "all");
    board.tell();
    board.await_told(kRanks);  // a death would end the calls of the others
    if (seat.rank() == victim) die(group, seat, moment, scenario, *board);
    // Rank 2 is one operation behind the others where they need not wait for it.
    if (seat.rank() == 2 && moment <= Moment::kBeforeCounts) nap(200);
    require_view_over(play_until_error(group, seat), 1, victim);
    require(!group.usable(), "the view is over");
    survive(group, 2, three);
    for (int i = 0; i < 3; ++i) require_ok(play_view(group, seat), "without one");
    if (seat.rank() == other) strike_self(*board, SIGKILL);
    require_view_over(play_until_error(group, seat), 2, other);
    survive(group, 3, three & ~(1 << other));
    for (int i = 0; i < 3; ++i) require_ok(play_view(group, seat), "without two");
    if (seat.rank() == 2) return;
    if (victim == 2) return require_ok(group.barrier(), "the last one");
    const Status status = play_until_error(group, seat);
    require_status(status, Code::kPeerLost, {"view 3 is over, lost rank 2", "left"},
                   "after it left");
    const int left = 1 << seat.rank();
    if (!may_go_on(left | 4, left)) {
      require_status(group.survive(), Code::kPeerLost, {"ranks 2 of view 3", "more than half"},
                     "a minority");
      return;
    }
    survive(group, 4, left);
    require_ok(play_view(group, seat), "alone");
  });
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
  for (const int dead : {victim, other}) {
    EXPECT_EQ(ends[dead].signal, SIGKILL);
    ends[dead] = {};
  }
  expect_all_well(ends, name);
}

INSTANTIATE_TEST_SUITE_P(
    Processes, SurviveDeath,
    testing::Values(Death{"Idle", Moment::kIdle, 1},
                    Death{"BeforeCounts", Moment::kBeforeCounts, 3},
                    Death{"WhileWritingRows", Moment::kWhileWritingRows, 1},
                    Death{"BeforeOutputs", Moment::kBeforeOutputs, 3},
                    Death{"WhileReading", Moment::kWhileReading, 1},
                    Death{"RankZeroWhileWritingRows", Moment::kWhileWritingRows, 0},
                    Death{"RankZeroWhileReading", Moment::kWhileReading, 0}),
    [](const testing::TestParamInfo<Death>& info) { return std::string(info.param.name); });

// Two ranks are killed from outside, the second at any moment after the first: in the first view,
// in survive(), or in the second view.
TEST(RandomSurvival, TwoKillsAtAnyMoment) {
  ExchangeConfig config = fault_config();
  config.max_tokens = 256;
  config.hidden = 1024;
  const Scenario scenario = scenario_of_sets(kRanks, config, 92);
  Random random(92);
  const int kills = static_cast<int>(50 * std::min(stress_scale(), 1.0));
  for (int i = 0; i < std::max(kills / 2, 3); ++i) {
    const int first = static_cast<int>(random.between(0, kRanks - 1));
    const int second = (first + static_cast<int>(random.between(1, kRanks - 1))) % kRanks;
    if (!may_go_on(15, 15 & ~(1 << first) & ~(1 << second))) continue;
    const SharedBoard board;
    ProcessRanks ranks(kRanks, {}, [&](Group group) {
      Seat seat(group, scenario);
      board->ready.fetch_add(1, std::memory_order_acq_rel);
      while (group.view().members.size() > 2) {
        const Status status = play_until_error(group, seat);
        require(status.code() == Code::kPeerLost || status.code() == Code::kBroken,
                status.message());
        require_ok(group.survive(), "survive");
      }
      for (int played = 0; played < 5; ++played) require_ok(play_view(group, seat), "of two");
    });
    while (board->ready.load(std::memory_order_acquire) < kRanks) nap(1);
    std::this_thread::sleep_for(std::chrono::microseconds(random.between(100, 20'000)));
    ranks.send_signal(first, SIGKILL);
    std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, 8'000)));
    ranks.send_signal(second, SIGKILL);
    std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
    ends[first] = ends[second] = {};
    expect_all_well(ends, "kills of ranks " + std::to_string(first) + " and " +
                              std::to_string(second) + ", turn " + std::to_string(i));
  }
}

// Two ranks stop in the middle of an operation. The others end their processes, all at the same
// time.
TEST(Survival, StoppedRanksAreFenced) {
  const Scenario scenario = scenario_of_sets(kRanks, fault_config(), 96);
  const SharedBoard board;
  GroupOptions options;
  options.deadline = std::chrono::milliseconds(500);
  ProcessRanks ranks(kRanks, options, [&](Group group) {
    Seat seat(group, scenario);
    require_ok(play_view(group, seat), "all");
    require_status(group.fence((seat.rank() + 1) % kRanks), Code::kInvalidArgument, {"usable"},
                   "all are well");
    if (seat.rank() % 2 == 1)
      die(group, seat, Moment::kWhileWritingRows, scenario, *board, SIGSTOP);
    require_status(play_until_error(group, seat), Code::kTimeout, {}, "two are stopped");
    for (const int wrong : {-1, kRanks, seat.rank()}) {
      require_status(group.fence(wrong), Code::kInvalidArgument,
                     {"fence: rank " + std::to_string(wrong)}, "a rank that is not to be fenced");
    }
    Status status;
    while ((status = group.survive(std::chrono::milliseconds(100))).code() == Code::kTimeout) {
      // Between nodes, a rank that repeats the call may be named while it is between two of its
      // calls.
      require(status.culprit() % 2 == 1 || !on_one_node(), status.message());
      if (status.culprit() % 2 == 0) continue;
      require_ok(group.fence(status.culprit()), "fence");
      require_ok(group.fence(status.culprit()), "fence once more");
    }
    require_ok(status, "survive");
    require(set_of(group.view()) == 5, "the view has ranks 0 and 2");
    for (int i = 0; i < 3; ++i) require_ok(play_view(group, seat), "without the two");
  });
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
  for (const int fenced : {1, 3}) {
    EXPECT_EQ(ends[fenced].signal, SIGKILL);
    ends[fenced] = {};
  }
  expect_all_well(ends, "stopped ranks");
}

// The exchange that was being made is lost. The one that was there before goes on.
TEST(Survival, ADeathWhileAnExchangeIsMade) {
  const Scenario scenario = scenario_of_sets(kRanks, fault_config(), 93);
  for (const int victim : {0, 2}) {
    const SharedBoard board;
    ProcessRanks ranks(kRanks, {}, [&](Group group) {
      Seat seat(group, scenario);
      require_ok(play_view(group, seat), "all");
      if (seat.rank() == victim) {
        nap(30);
        strike_self(*board, SIGKILL);
      }
      const Status status = error_of([&] { Exchange(group, fault_config()); });
      require_status(status, Code::kPeerLost, {"rank " + std::to_string(victim)}, "creation");
      survive(group, 2, 15 & ~(1 << victim));
      require_ok(play_view(group, seat), "without one");
    });
    std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
    ends[victim] = {};
    expect_all_well(ends, "creation");
  }
}

// Rank 0 is told of the death of rank 2 and ends at once, without leaving the group. Rank 1 comes
// later, and finds both dead.
TEST(Survival, ARankThatEndsBecauseOfADeathIsNotNamed) {
  if (!on_one_node()) GTEST_SKIP() << "ranks of another node see connections only";
  const SharedBoard board;
  ProcessRanks ranks(3, {}, [&](Group group) {
    if (group.rank() == 2) strike_self(*board, SIGKILL);
    if (group.rank() == 1) {
      board.await_told(1);
      nap(50);
    }
    const Status status = error_of([&] { Exchange(group, fault_config()); });
    require_status(status, Code::kPeerLost, {"rank 2"}, "creation");
    require(status.culprit() == 2, status.message());
    board.tell();
    if (group.rank() == 0) kill(getpid(), SIGKILL);
  });
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
  ends[0].signal = 0;
  ends[2] = {};
  expect_all_well(ends, "a rank that ended because of a death");
}

// What a survivor of a death measured, in memory that it shares with the process of the test.
struct Times {
  std::int64_t told = 0;        // ns from the death, or the call after it, to the name
  std::int64_t survived = 0;    // ns of survive()
  std::int64_t usual = 0;       // ns of a dispatch before the death
  std::int64_t dispatched = 0;  // ns of the first dispatch after survive()
  std::int64_t ended = 0;       // ns from the death, or that call, to its end
};

class SharedTimes {
 public:
  explicit SharedTimes(int ranks)
      : bytes_(ranks * sizeof(Times)),
        times_(static_cast<Times*>(
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))),
        ranks_(ranks) {}
  ~SharedTimes() { munmap(times_, bytes_); }
  SharedTimes(const SharedTimes&) = delete;
  SharedTimes& operator=(const SharedTimes&) = delete;

  Times& of(int rank) const { return times_[rank]; }
  // The longest of the ranks, in microseconds.
  double longest_us(std::int64_t Times::*which) const {
    std::int64_t longest = 0;
    for (int rank = 0; rank < ranks_; ++rank) longest = std::max(longest, times_[rank].*which);
    return static_cast<double>(longest) / 1000;
  }

 private:
  std::size_t bytes_;
  Times* times_;
  int ranks_;
};

// A dispatch of the ranks of the view. Returns its nanoseconds; throws Failure unless what came
// equals the oracle.
std::int64_t timed_dispatch(const Group& group, Seat& seat) {
  const int set = set_of(group.view());
  DispatchCall call = seat.dispatch_call(set);
  call.args().active_ranks = {};
  Received received;
  const std::int64_t began_ns = now_ns();
  require_ok(seat.exchange().dispatch(call.args(), received), "timed dispatch");
  const std::int64_t ns = now_ns() - began_ns;
  seat.check(set, received);
  return ns;
}

void measure_death(Group& group, Seat& seat, Moment moment, const Board& board, Times& times) {
  if (moment == Moment::kIdle) nap(20);  // then the victim is dead, and no rank is in a call
  const int all = set_of(group.view());
  const std::int64_t began_ns = now_ns();
  const Status status = play_until_error(group, seat);
  const std::int64_t told_ns = now_ns();
  const std::int64_t struck_ns = board.struck_ns.load(std::memory_order_acquire);
  const std::int64_t since_ns = moment == Moment::kIdle ? std::max(struck_ns, began_ns) : struck_ns;
  times.told = told_ns - since_ns;
  require_status(status, Code::kPeerLost, {"view 1 is over, lost rank"}, "the death");
  const std::int64_t called_ns = now_ns();
  survive(group, 2, all & ~(1 << status.culprit()));
  times.survived = now_ns() - called_ns;
  times.dispatched = timed_dispatch(group, seat);
  times.ended = now_ns() - since_ns;
  for (int i = 0; i < 3; ++i) require_ok(play_view(group, seat), "without one");
}

// "median / longest" of times in microseconds, as milliseconds.
std::string in_words(std::vector<double> times_us) {
  std::sort(times_us.begin(), times_us.end());
  char text[64];
  std::snprintf(text, sizeof text, "%.2f / %.2f", times_us[times_us.size() / 2] / 1000,
                times_us.back() / 1000);
  return text;
}

// Prints, for each time, the median and the longest over the kills, each of the slowest survivor.
class KillTimes : public testing::TestWithParam<std::pair<int, Moment>> {};

TEST_P(KillTimes, Table) {
  const auto [num_ranks, moment] = GetParam();
  const Scenario scenario = scenario_of_sets(num_ranks, fault_config(), 95);
  constexpr std::pair<const char*, std::int64_t Times::*> kColumns[] = {
      {"name", &Times::told},
      {"survive()", &Times::survived},
      {"next dispatch", &Times::dispatched},
      {"kill to its end", &Times::ended},
      {"usual dispatch", &Times::usual}};
  std::vector<std::vector<double>> columns(std::size(kColumns));
  const int kills = std::max(3, static_cast<int>(50 * std::min(stress_scale(), 1.0)));
  for (int kill = 0; kill < kills; ++kill) {
    const int victim = kill % num_ranks;
    const SharedBoard board;
    const SharedTimes times(num_ranks);
    ProcessRanks ranks(num_ranks, {}, [&, moment = moment](Group group) {
      Seat seat(group, scenario);
      Times& mine = times.of(seat.rank());
      for (int i = 0; i < 10; ++i) require_ok(play_view(group, seat), "all");
      mine.usual = timed_dispatch(group, seat);
      if (seat.rank() == victim && moment == Moment::kIdle) strike_self(*board, SIGKILL);
      if (seat.rank() == victim) die(group, seat, moment, scenario, *board);
      measure_death(group, seat, moment, *board, mine);
    });
    std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
    EXPECT_EQ(ends[victim].signal, SIGKILL);
    ends[victim] = {};
    expect_all_well(ends, "kill " + std::to_string(kill));
    for (std::size_t i = 0; i < columns.size(); ++i)
      columns[i].push_back(times.longest_us(kColumns[i].second));
  }
  std::printf("%d kills of 1 of %d, %s:", kills, num_ranks,
              moment == Moment::kIdle               ? "idle"
              : moment == Moment::kWhileWritingRows ? "dispatch"
                                                    : "combine");
  for (std::size_t i = 0; i < columns.size(); ++i)
    std::printf(" %s %s ms%s", kColumns[i].first, in_words(columns[i]).c_str(),
                i + 1 < columns.size() ? "," : " (median / longest)\n");
}

INSTANTIATE_TEST_SUITE_P(
    Processes, KillTimes,
    testing::Values(std::pair(4, Moment::kIdle), std::pair(4, Moment::kWhileWritingRows),
                    std::pair(4, Moment::kWhileReading), std::pair(6, Moment::kIdle),
                    std::pair(6, Moment::kWhileWritingRows), std::pair(6, Moment::kWhileReading)));

class Survive : public SeatTest {};

// Rank 1 leaves while operations of the others are in flight. Each limit of the next view is an
// error by name, and the group stays usable.
TEST_P(Survive, WhatTheNextViewRefuses) {
  const Scenario scenario = scenario_of_sets(kRanks, fault_config(), 94);
  const SharedBoard board;
  const auto body = [&](Group group, Seat& seat) {
    Collectives collectives(group);
    const Received held = seat.dispatch(15);
    board.tell();
    board.await_told(kRanks);  // survive() of one rank would end the calls of the others
    if (seat.rank() == 1) return group.destroy();
    DispatchCall call = seat.dispatch_call(15);
    Operation operation;
    Received received;
    Status status = seat.exchange().dispatch_send(call.args(), operation);
    require_status(status, Code::kPeerLost, {"rank 1", "left", "view 1 is over"}, "rank 1 left");
    survive(group, 2, 13);
    seat.check(15, held, " held since view 1");
    const CombineCall late = seat.combine_call(15, held.handle);
    require_status(seat.exchange().combine(late.args()), Code::kInvalidArgument,
                   {"ranks 0, 1, 2, 3", "0, 2, 3"}, "a handle of view 1");
    require_status(seat.exchange().dispatch_recv({1}, received), Code::kInvalidArgument,
                   {"operation 1", "ended with the view", "view 2"}, "an operation of view 1");
    require_status(seat.exchange().dispatch(call.args(), received), Code::kInvalidArgument,
                   {"expert", "view lacks", "0, 2, 3"}, "an expert of rank 1");
    const std::vector<int> named = {0, 1};
    call.args().active_ranks = named;
    require_status(seat.exchange().dispatch(call.args(), received), Code::kInvalidArgument,
                   {"rank 1", "view 2 lacks", "0, 2, 3"}, "active ranks of view 1");
    require_status(collectives.barrier(), Code::kClosed, {"view 1", "view 2"}, "collectives");
    require_ok(play_view(group, seat), "without one");
    std::vector<int> gathered(kRanks, -1);
    const int mine = seat.rank() + 10;
    require_ok(group.all_gather(&mine, sizeof mine, gathered.data()), "all_gather");
    require(gathered == std::vector<int>{10, 0, 12, 13}, "gathered of the view");
    require_ok(group.barrier(), "barrier");
  };
  run(scenario, body);
}

// Ranks 0 and 1 leave. Rank 0 has the only shared expert of one exchange. In the other one ranks 0
// and 1 have shared expert 0, and ranks 2 and 3 have shared expert 1.
TEST_P(Survive, SharedExpertsThatAreLostAreRefused) {
  const SharedBoard board;
  run_ranks(GetParam(), 6, [&](Group group) {
    ExchangeConfig one = fault_config(), two = one;
    one.shared = {.num_experts = 1, .num_ranks = 1};
    two.shared = {.num_experts = 2, .num_ranks = 4};
    Exchange first(group, one), second(group, two);
    board.tell();
    board.await_told(6);  // survive() of one rank would end the calls of the others
    if (group.rank() < 2) return group.destroy();
    require_ok(group.survive(), "survive");
    Received received;
    for (Exchange* const exchange : {&first, &second}) {
      require_status(exchange->dispatch({}, received), Code::kInvalidArgument,
                     {"shared experts", "view 2"}, "a shared expert is lost");
    }
    require_ok(group.barrier(), "the group goes on");
  });
}

// A rank that lives and does not come is waited for, and named at the deadline.
TEST_P(Survive, ALivingRankIsNotLeftBehind) {
  const Scenario scenario = scenario_of_sets(kRanks, fault_config(), 95);
  const SharedBoard board;
  const auto body = [&](Group group, Seat& seat) {
    require_ok(play_view(group, seat), "all");
    board.tell();
    board.await_told(kRanks);  // survive() of one rank would end the calls of the others
    if (seat.rank() == 2) {
      board.await_told(2 * kRanks - 1);
    } else {
      const Status status = group.survive(std::chrono::milliseconds(100));
      require_status(status, Code::kTimeout, {"rank 2", "did not come to view 2", "alive"}, "late");
      require(status.culprit() == 2 && !group.usable(), status.message());
      if (GetParam() == Mode::kThreads)
        require_status(group.fence(2), Code::kInvalidArgument, {"rank 2", "thread"}, "a thread");
      board.tell();
    }
    survive(group, 2, 15);
    require_ok(play_view(group, seat), "all again");
    board.tell();
    board.await_told(3 * kRanks - 1);
    survive(group, 3, 15);
    require_ok(play_view(group, seat), "all once more");
  };
  run(scenario, body);
}

INSTANTIATE_TEST_SUITE_P(Threads, Survive, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, Survive, testing::Values(Mode::kProcesses));

}  // namespace
}  // namespace ferry::test
