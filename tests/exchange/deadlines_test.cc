// What ends a wait: one deadline for all waits of a call, in which time that the whole job was
// stopped does not count; and an interruption, for which no other rank is named.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>

#include "seat.h"
#include "victim.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 3;
constexpr int kLate = 1;

class Deadlines : public testing::TestWithParam<Mode> {};

void require_late(const Status& status, std::int64_t began_ns, double most_seconds) {
  const double seconds = static_cast<double>(now_ns() - began_ns) * 1e-9;
  require_status(status, Code::kTimeout, {"rank 1", "0.4 s"}, "a late rank");
  require(status.culprit() == kLate, "culprit " + std::to_string(status.culprit()));
  require(seconds > 0.3 && seconds < most_seconds, "told after " + std::to_string(seconds) + " s");
}

// Rank 1 comes to each of some twenty pieces before a deadline would pass, but takes six seconds
// for all of them.
TEST_P(Deadlines, AllGatherOfSeveralPiecesHasOne) {
  const auto body = [](Group group) {
    constexpr std::size_t kBytes = 40'000;
    std::vector<std::byte> mine(kBytes), all(kRanks * kBytes);
    if (group.rank() == kLate) {
      Status status;
      while (status.ok()) nap(300), status = group.barrier();
      return;
    }
    const std::int64_t began = now_ns();
    require_late(group.all_gather(mine.data(), kBytes, all.data()), began, 5);
  };
  run_ranks(GetParam(), kRanks, body, "", {.deadline = std::chrono::milliseconds(400)});
}

// Rank 1 announces its dispatch late, and is then stopped while it writes its rows.
TEST(DeadlineOfACall, HoldsForAllItsWaits) {
  const Scenario scenario = plain_scenario(kRanks, fault_config(), 1, 51);
  const SharedBoard board;
  ProcessRanks ranks(kRanks, {.deadline = std::chrono::milliseconds(400)}, [&](Group group) {
    Seat seat(group, scenario);
    DispatchCall call = seat.dispatch_call(0);
    const auto& tokens = scenario.rounds[0].inputs[seat.rank()].tokens;
    Trap trap(tokens.size(), *board, SIGSTOP);
    Received received;
    const std::int64_t began = now_ns();
    if (seat.rank() == kLate) {
      std::memcpy(trap.data(), tokens.data(), tokens.size());
      call.args().tokens.data = trap.data();
      call.args().tokens.pitch_bytes = 0;
      trap.arm();
      nap(350);
    }
    const Status status = seat.exchange().dispatch(call.args(), received);
    board.tell();
    if (seat.rank() != kLate) require_late(status, began, 0.74);
  });
  board.await_told(kRanks - 1);
  ranks.send_signal(kLate, SIGCONT);
  expect_all_well(ranks.wait(std::chrono::seconds(20)), "two waits");
}

// All ranks are stopped for longer than the deadline; the one that is waited for goes on last.
TEST(StoppedJob, GoesOnAsIfNothingHadBeen) {
  const Scenario scenario = plain_scenario(kRanks, fault_config(), 1, 52);
  const SharedBoard board;
  ProcessRanks ranks(kRanks, {.deadline = std::chrono::milliseconds(500)}, [&](Group group) {
    Seat seat(group, scenario);
    board->ready.fetch_add(1, std::memory_order_acq_rel);
    if (seat.rank() == kLate) nap(100);
    seat.play(0);
  });
  while (board->ready.load(std::memory_order_acquire) < kRanks) nap(1);
  nap(20);
  for (int rank = 0; rank < kRanks; ++rank) ranks.send_signal(rank, SIGSTOP);
  nap(700);
  for (const int rank : {0, 2}) ranks.send_signal(rank, SIGCONT);
  nap(50);
  ranks.send_signal(kLate, SIGCONT);
  expect_all_well(ranks.wait(std::chrono::seconds(20)), "a stopped job");
}

// Whether the waits of the rank that this thread plays are interrupted.
thread_local bool interrupted = false;

GroupOptions with_interruption() {
  return {.deadline = std::chrono::seconds(20), .interrupted = [] { return interrupted; }};
}

void require_interrupted(const Status& status, int victim) {
  require_status(status, Code::kInterrupted, {"rank " + std::to_string(victim), "was interrupted"},
                 "interrupted");
  require(status.culprit() == victim, "culprit " + std::to_string(status.culprit()));
}

TEST_P(Deadlines, InterruptedRankIsNamedByAllRanks) {
  const Scenario scenario = plain_scenario(kRanks, fault_config(), 1, 53);
  const SharedBoard board;
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    DispatchCall call = seat.dispatch_call(0);
    Received received;
    if (seat.rank() == kLate) board.await_told(1);  // rank 0, which is interrupted, has given up
    interrupted = seat.rank() == 0;
    const Status status = seat.exchange().dispatch(call.args(), received);
    if (interrupted) board.tell();
    require_interrupted(status, 0);
  };
  run_ranks(GetParam(), kRanks, body, "", with_interruption());
}

// While an exchange is made; the coordinator is interrupted, or a member is.
TEST_P(Deadlines, RankInterruptedInARendezvousIsNamedByAllRanks) {
  for (const int victim : {0, 2}) {
    const SharedBoard board;
    const auto body = [&](Group group) {
      if (group.rank() == kLate) board.await_told(1);  // the victim has given up
      interrupted = group.rank() == victim;
      const Status status = error_of([&] { Exchange exchange(group, fault_config()); });
      if (interrupted) board.tell();
      require_interrupted(status, victim);
      interrupted = false;
    };
    run_ranks(GetParam(), kRanks, body, "", with_interruption());
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, Deadlines, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, Deadlines, testing::Values(Mode::kProcesses));

}  // namespace
}  // namespace ferry::test
