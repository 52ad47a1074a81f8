// Ranks that die or stop in each phase, as real processes hit by real signals: the others name the
// rank and the phase in time, no rank hangs, and no memory or file remains.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "exchange/setup/setup.h"
#include "seat.h"
#include "victim.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 3;
constexpr int kVictim = 1;
constexpr std::chrono::milliseconds kShortDeadline{1500};

enum class Moment { kBeforeCounts, kWhileWritingRows, kBeforeOutputs, kWhileReading };

struct FaultCase {
  const char* name;
  Moment moment;
  int signal;
  std::vector<std::string> parts;  // of the others' message
};

void PrintTo(const FaultCase& fault, std::ostream* stream) { *stream << fault.name; }

// The victim's second round, up to the blow. If the victim is told something afterwards, it must
// soon be an error.
Status victim_round(Seat& seat, const Scenario& scenario, const FaultCase& fault, Board& board) {
  const std::vector<std::byte>& tokens = scenario.rounds[1].inputs[seat.rank()].tokens;
  DispatchCall dispatch = seat.dispatch_call(1);
  const std::size_t pitch = static_cast<std::size_t>(scenario.config.hidden) * 2;
  Trap trap(tokens.size(), board, fault.signal);
  if (fault.moment == Moment::kBeforeCounts) strike_self(board, fault.signal);
  if (fault.moment == Moment::kWhileWritingRows) {
    std::memcpy(trap.data(), tokens.data(), tokens.size());
    dispatch.args().tokens.data = trap.data();
    dispatch.args().tokens.pitch_bytes = static_cast<std::int64_t>(pitch);
    trap.arm();
  }
  Received received;
  if (Status status = seat.exchange().dispatch(dispatch.args(), received); !status.ok())
    return status;
  if (fault.moment == Moment::kBeforeOutputs) strike_self(board, fault.signal);
  CombineCall combine = seat.combine_call(1, received.handle);
  if (fault.moment == Moment::kWhileReading) {
    combine.args().out = trap.data();
    combine.args().out_dtype = DataType::kBf16;
    combine.args().out_pitch_bytes = 0;
    combine.args().bias = {};
    trap.arm();
  }
  return seat.exchange().combine(combine.args());
}

// Dispatch and combine again and again, until an error.
Status rounds_until_error(Seat& seat) {
  while (true) {
    const DispatchCall dispatch = seat.dispatch_call(1);
    Received received;
    if (Status status = seat.exchange().dispatch(dispatch.args(), received); !status.ok())
      return status;
    const CombineCall combine = seat.combine_call(1, received.handle);
    if (!combine.broke().ok()) return combine.broke();
    if (Status status = seat.exchange().combine(combine.args()); !status.ok()) return status;
  }
}

// The victim may owe sums to ranks of other nodes while it reads its own.
std::vector<std::string> parts_of(const FaultCase& fault, const Status& status) {
  const bool owed =
      fault.moment == Moment::kWhileReading && status.message().find("sums") != std::string::npos;
  return owed ? std::vector<std::string>{"combine 4"} : fault.parts;
}

// Ranks of another node cannot see whether the victim is alive.
void require_named_in_time(const Status& status, const FaultCase& fault, const Board& board,
                           bool sees_victim) {
  const double seconds =
      static_cast<double>(now_ns() - board.struck_ns.load(std::memory_order_acquire)) * 1e-9;
  const bool killed = fault.signal == SIGKILL;
  require_status(status, killed ? Code::kPeerLost : Code::kTimeout, parts_of(fault, status),
                 fault.name);
  require_status(status, status.code(),
                 {"rank 1", killed        ? "dead"
                            : sees_victim ? "alive"
                                          : "did not arrive"},
                 fault.name);
  require(status.culprit() == kVictim,
          "culprit " + std::to_string(status.culprit()) + " in " + status.message());
  require(!status.group_usable(), "the group is broken");
  const double limit = killed ? 1.0 : std::chrono::duration<double>(kShortDeadline).count() + 1.0;
  require(seconds < limit, "told after " + std::to_string(seconds) + " s: " + status.message());
  require(killed || seconds > 0.5, "told too early: " + std::to_string(seconds));
}

class Faults : public testing::TestWithParam<FaultCase> {};

TEST_P(Faults, TheOthersNameTheRankAndThePhase) {
  const FaultCase& fault = GetParam();
  const Scenario scenario = plain_scenario(kRanks, fault_config(), 2, 31);
  const SharedBoard board;
  GroupOptions options;
  if (fault.signal == SIGSTOP) options.deadline = kShortDeadline;
  ProcessRanks ranks(kRanks, options, [&](Group group) {
    Seat seat(group, scenario);
    const Received held = seat.dispatch(0);
    seat.combine(0, held.handle);
    if (seat.rank() == kVictim) {
      Status status = victim_round(seat, scenario, fault, *board);
      if (status.ok()) status = rounds_until_error(seat);
      require(!status.group_usable(), "the victim woke and was told: " + status.message());
      return;
    }
    const Status status = rounds_until_error(seat);
    board.tell();
    const std::vector<int>& nodes = scenario.nodes.of_rank;
    require_named_in_time(status, fault, *board, nodes[seat.rank()] == nodes[kVictim]);
    nap(fault.signal == SIGSTOP ? 300 : 0);  // the victim wakes and may write its rows
    seat.check(0, held, " held while the victim woke");
  });
  if (fault.signal == SIGSTOP) board.await_told(kRanks - 1);
  ranks.send_signal(kVictim, SIGCONT);
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
  if (fault.signal == SIGKILL) {
    EXPECT_EQ(ends[kVictim].signal, SIGKILL);
    ends[kVictim] = {};
  }
  expect_all_well(ends, fault.name);
}

INSTANTIATE_TEST_SUITE_P(
    Processes, Faults,
    testing::Values(
        FaultCase{"KilledBeforeCounts", Moment::kBeforeCounts, SIGKILL, {"dispatch 3", "counts"}},
        FaultCase{
            "KilledWhileWritingRows", Moment::kWhileWritingRows, SIGKILL, {"dispatch 3", "rows"}},
        FaultCase{"KilledBeforeOutputs", Moment::kBeforeOutputs, SIGKILL, {"combine 4", "outputs"}},
        FaultCase{"KilledWhileReading", Moment::kWhileReading, SIGKILL, {"dispatch 5", "counts"}},
        FaultCase{"StoppedBeforeCounts", Moment::kBeforeCounts, SIGSTOP, {"dispatch 3", "counts"}},
        FaultCase{
            "StoppedWhileWritingRows", Moment::kWhileWritingRows, SIGSTOP, {"dispatch 3", "rows"}},
        FaultCase{
            "StoppedBeforeOutputs", Moment::kBeforeOutputs, SIGSTOP, {"combine 4", "outputs"}},
        FaultCase{"StoppedWhileReading", Moment::kWhileReading, SIGSTOP, {"dispatch 5", "counts"}}),
    [](const testing::TestParamInfo<FaultCase>& info) { return std::string(info.param.name); });

class CountSumsFaults : public testing::TestWithParam<int> {};

// The ranks sum a large matrix of counts together. Rank 1 has announced its counts and waits for
// those of rank 0 when it is hit, so its slice of the sums does not come.
TEST_P(CountSumsFaults, TheRankWithoutASliceIsNamed) {
  if (test_nodes(kRanks).several()) GTEST_SKIP() << "rank 0 sums alone, and waits for the rows";
  ExchangeConfig config = fault_config();
  config.num_experts = static_cast<int>(internal::kSharedSumsFrom);
  const Scenario scenario = plain_scenario(kRanks, config, 1, 38);
  const FaultCase fault{
      "before its slice", Moment::kBeforeCounts, GetParam(), {"dispatch 1", "count sums"}};
  const SharedBoard board;
  bool strikes = false;  // of each process
  GroupOptions options;
  if (fault.signal == SIGSTOP) options.deadline = kShortDeadline;
  options.interrupted = [&] {  // asked while a rank waits
    if (std::exchange(strikes, false)) strike_self(*board, fault.signal);
    return false;
  };
  ProcessRanks ranks(kRanks, options, [&](Group group) {
    Seat seat(group, scenario);
    strikes = seat.rank() == kVictim;
    if (seat.rank() == 0) nap(200);
    const DispatchCall call = seat.dispatch_call(0);
    Received received;
    const Status status = seat.exchange().dispatch(call.args(), received);
    if (seat.rank() == kVictim) return require(!status.ok(), "the victim woke and was told");
    board.tell();
    require_named_in_time(status, fault, *board, true);
  });
  if (fault.signal == SIGSTOP) board.await_told(kRanks - 1);
  ranks.send_signal(kVictim, SIGCONT);
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
  if (fault.signal == SIGKILL) ends[kVictim] = {};
  expect_all_well(ends, fault.name);
}

INSTANTIATE_TEST_SUITE_P(Processes, CountSumsFaults, testing::Values(SIGKILL, SIGSTOP));

// Rank 2 is in the middle of its sums when rank 0 finds rank 1 dead. If the combine of rank 2
// succeeds, its output must be complete.
TEST(BystanderOfADeath, CombineIsWholeOrAnError) {
  if (test_nodes(kRanks).several())
    GTEST_SKIP() << "the combine of rank 0 needs the dead rank, which sums for it";
  ExchangeConfig config = fault_config();
  config.max_tokens = 512;
  const Scenario scenario = plain_scenario(kRanks, config, 2, 37);
  const SharedBoard board;
  ProcessRanks ranks(kRanks, {}, [&](Group group) {
    Seat seat(group, scenario);
    Received received = seat.dispatch(0);
    if (seat.rank() != 2) {
      const Seat::PendingCombine sent = seat.combine_send(0, received.handle);
      if (seat.rank() == kVictim) strike_self(*board, SIGKILL);
      seat.combine_recv(sent);
      const Status status = rounds_until_error(seat);
      board.tell();
      require_status(status, Code::kPeerLost, {"rank 1"}, "rank 0");
      nap(500);
      return;
    }
    const std::size_t out_bytes =
        static_cast<std::size_t>(config.max_tokens * config.hidden) * sizeof(float);
    Trap trap(out_bytes, *board, SIGSTOP);
    CombineCall call = seat.combine_call(0, received.handle);
    call.args().out = trap.data();
    call.args().out_dtype = DataType::kFp32;
    call.args().out_pitch_bytes = 0;
    call.args().bias = {};
    trap.arm();
    const Status status = seat.exchange().combine(call.args());
    if (!status.ok()) return;
    std::vector<internal::RankOutput> outputs = scenario.rounds[0].combines[0].outputs;
    outputs[2].bias[0].clear();
    outputs[2].bias[1].clear();
    outputs[2].out_type = DataType::kFp32;
    const auto expected = internal::reference_combine(config, scenario.rounds[0].inputs, outputs,
                                                      config.hidden, DataType::kBf16);
    require_same_bytes(trap.data(), expected[2].out.data(), out_bytes,
                       "a combine that says it succeeded");
  });
  board.await_told(1);
  ranks.send_signal(2, SIGCONT);
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
  ends[kVictim] = {};
  expect_all_well(ends, "bystander");
}

// A kill from outside at any moment of a running loop of large rows.
TEST(RandomKill, TheOthersNameTheRankWithinASecond) {
  ExchangeConfig config = fault_config();
  config.max_tokens = 512;
  config.hidden = 2048;
  const Scenario scenario = plain_scenario(kRanks, config, 2, 32);
  Random random(32);
  for (int i = 0; i < 12; ++i) {
    const SharedBoard board;
    ProcessRanks ranks(kRanks, {}, [&](Group group) {
      Seat seat(group, scenario);
      board->ready.fetch_add(1, std::memory_order_acq_rel);
      const Status status = rounds_until_error(seat);
      const double seconds =
          static_cast<double>(now_ns() - board->struck_ns.load(std::memory_order_acquire)) * 1e-9;
      require_status(status, Code::kPeerLost, {"rank 1", "dead"}, "after a kill");
      require(seconds < 1.0, "told after " + std::to_string(seconds) + " s: " + status.message());
      const std::vector<std::string> phases = {"counts",  "growth", "reuse",    "rows",
                                               "outputs", "sums",   "requests", "room"};
      require(std::any_of(phases.begin(), phases.end(),
                          [&](auto& p) { return contains(status.message(), p); }),
              "no phase in " + status.message());
    });
    while (board->ready.load(std::memory_order_acquire) < kRanks) nap(1);
    std::this_thread::sleep_for(std::chrono::microseconds(random.between(100, 30'000)));
    board->struck_ns.store(now_ns(), std::memory_order_release);
    ranks.send_signal(kVictim, SIGKILL);
    std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
    ends[kVictim] = {};
    expect_all_well(ends, "kill " + std::to_string(i));
  }
}

// Whether shared memory comes back to less than `slack` above `before`, within 10 s. Other
// processes of this machine may use more or less of it meanwhile.
bool memory_comes_back(std::int64_t before, std::int64_t slack) {
  for (int i = 0; i < 100; ++i) {
    if (shared_memory_in_use() < before + slack) return true;
    nap(100);
  }
  return false;
}

TEST(AllKilled, NothingIsLeftBehind) {
  ExchangeConfig config = fault_config();
  config.max_tokens = 1024;
  config.hidden = 4096;
  const std::set<std::string> files = files_in_dev_shm();
  const Scenario scenario = plain_scenario(kRanks, config, 2, 33);
  const std::int64_t before = shared_memory_in_use();
  for (int i = 0; i < 3; ++i) {
    const SharedBoard board;
    ProcessRanks ranks(kRanks, {}, [&](Group group) {
      Seat seat(group, scenario);
      board->ready.fetch_add(1, std::memory_order_acq_rel);
      const Status status = rounds_until_error(seat);
      throw Failure("ended by itself: " + status.message());
    });
    while (board->ready.load(std::memory_order_acquire) < kRanks) nap(1);
    nap(20 + 10 * i);
    const std::int64_t in_use = shared_memory_in_use() - before;
    EXPECT_GT(in_use, 32 << 20) << "the windows must be large enough to be missed";
    for (int rank = 0; rank < kRanks; ++rank) ranks.send_signal(rank, SIGKILL);
    for (const RankEnd& end : ranks.wait(std::chrono::seconds(20)))
      EXPECT_EQ(end.signal, SIGKILL) << end.failure;
    EXPECT_TRUE(memory_comes_back(before, in_use / 2))
        << before << " bytes before, " << shared_memory_in_use() << " after";
  }
  for (const std::string& file : files_in_dev_shm())
    EXPECT_TRUE(files.contains(file)) << "left in /dev/shm: " << file;
}

// The same for one rank that dies and others that end well.
TEST(OneKilled, MemoryIsBackWhenTheOthersEnd) {
  ExchangeConfig config = fault_config();
  config.max_tokens = 1024;
  config.hidden = 4096;
  const Scenario scenario = plain_scenario(kRanks, config, 2, 34);
  const std::int64_t before = shared_memory_in_use();
  const SharedBoard board;
  ProcessRanks ranks(kRanks, {}, [&](Group group) {
    Seat seat(group, scenario);
    board->ready.fetch_add(1, std::memory_order_acq_rel);
    require_status(rounds_until_error(seat), Code::kPeerLost, {"rank 1", "dead"}, "after a kill");
  });
  while (board->ready.load(std::memory_order_acquire) < kRanks) nap(1);
  nap(30);
  const std::int64_t in_use = shared_memory_in_use() - before;
  ranks.send_signal(kVictim, SIGKILL);
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
  ends[kVictim] = {};
  expect_all_well(ends, "one killed");
  EXPECT_TRUE(memory_comes_back(before, in_use / 2));
}

// After the group broke, the survivors make a new one and go on.
TEST(Recovery, SurvivorsMakeANewGroup) {
  const Scenario three = plain_scenario(3, fault_config(), 2, 35);
  const Scenario two = plain_scenario(2, fault_config(), 3, 36);
  const std::string address = "recovery-" + std::to_string(getpid());
  const SharedBoard board;
  ProcessRanks ranks(3, {}, [&](Group group) {
    Seat seat(group, three);
    if (group.rank() == kVictim) strike_self(*board, SIGKILL);
    require(!rounds_until_error(seat).ok(), "rank 1 is dead");
    const int new_rank = group.rank() == 0 ? 0 : 1;
    group.destroy();
    Group survivors = Group::connect(address, new_rank, 2, on_test_nodes({}, 2));
    play(survivors, two, {});
  });
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
  ends[kVictim] = {};
  expect_all_well(ends, "recovery");
}

}  // namespace
}  // namespace ferry::test
