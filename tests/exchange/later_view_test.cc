// What can be made in a view after the first: exchanges and collectives of the ranks that remain,
// also without rank 0, where all ranks met.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "group/state.h"
#include "victim.h"
#include "view_collectives.h"
#include "view_rounds.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 4;

class LaterView : public testing::TestWithParam<Mode> {};

// Rank 0 leaves, and later rank 3.
TEST_P(LaterView, ExchangesAndCollectivesAreMade) {
  const Scenario all = scenario_of_sets(kRanks, fault_config(), 96);
  const Scenario three = scenario_among(kRanks, fault_config(), {1, 2, 3}, 97),
                 two = scenario_among(kRanks, fault_config(), {1, 2}, 98);
  run_ranks(GetParam(), kRanks, [&](Group group) {
    Seat first(group, all);
    require_ok(play_view(group, first), "all");
    if (group.rank() == 0) return group.destroy();
    require_status(play_until_error(group, first), Code::kPeerLost, {"rank 0"}, "rank 0 left");
    survive(group, 2, 14);
    Seat second(group, three);
    const Exchange by_default(group, fault_config());
    require(by_default.num_local_experts() == 4, "the ranks of the view own the experts");
    for (int i = 0; i < 3; ++i) {
      require_ok(play_view(group, first), "the first exchange");
      require_ok(play_view(group, second), "an exchange of view 2");
    }
    require_collectives(group, /*lost=*/0);
    if (group.rank() == 3) return;
    require_status(play_until_error(group, second), Code::kPeerLost, {"rank 3"}, "rank 3 left");
    survive(group, 3, 6);
    Seat third(group, two);
    for (int i = 0; i < 3; ++i)
      for (Seat* const seat : {&first, &second, &third})
        require_ok(play_view(group, *seat), "view 3");
    require_collectives(group, /*lost=*/3);
  });
}

// Errors name ranks, and the group stays usable.
TEST_P(LaterView, ConfigurationsThatDifferOrAreRefused) {
  run_ranks(GetParam(), kRanks, [](Group group) {
    if (group.rank() == 0) return group.destroy();
    survive(group, 2, 14);
    ExchangeConfig config = fault_config();
    if (group.rank() == 3) config.hidden += 1;
    const auto make = [&] { Exchange(group, config); };
    Status status = error_of(make);
    require_status(status, Code::kMismatch, {"ranks 1 and 3", "hidden"}, "hidden differs");
    require(status.culprit() == 3, status.message());
    config = fault_config();
    if (group.rank() == 2) config.hidden = 0;
    status = error_of(make);
    require(status.culprit() == 2, status.message());
    if (group.rank() != 2)
      require_status(status, Code::kPeerRejected, {"rank 2 refused", "hidden is 0"}, "refused");
    config = fault_config();
    config.tp_size = 2;
    require_status(error_of(make), Code::kInvalidArgument, {}, "tp_size 2");
    config.tp_size = 1;
    make();
    require_ok(group.barrier(), "the group goes on");
  });
}

// The ranks of view 2 have met nowhere when one of them leaves.
TEST_P(LaterView, ARankThatLeavesBeforeItMeetsTheOthersIsLost) {
  run_ranks(GetParam(), kRanks, [](Group group) {
    if (group.rank() == 0) return group.destroy();
    survive(group, 2, 14);
    if (group.rank() == 3) return group.destroy();
    const auto began = std::chrono::steady_clock::now();
    const Status status = error_of([&] { Exchange(group, fault_config()); });
    require_status(status, Code::kPeerLost, {"rank 3"}, "rank 3 left, and then others");
    require(status.culprit() == 3, status.message());
    require(std::chrono::steady_clock::now() - began < std::chrono::seconds(5), "took too long");
  });
}

// A rank destroys its exchange after it has prepared for view 2 in a call that timed out. The first
// call of the others does not wait for it until the deadline.
TEST_P(LaterView, AnExchangeDestroyedBeforeSurviveIsRepeated) {
  const Scenario scenario = scenario_of_sets(kRanks, fault_config(), 99);
  const SharedBoard board;
  run_ranks(GetParam(), kRanks,
            [&](Group group) {
              std::optional<Seat> seat(std::in_place, group, scenario);
              require_ok(play_view(group, *seat), "all");
              board.tell();
              board.await_told(kRanks);  // survive() of one rank would end the calls of the others
              if (group.rank() == 2) {
                board.await_told(2 * kRanks - 1);
              } else {
                const Status late = group.survive(std::chrono::milliseconds(100));
                require_status(late, Code::kTimeout, {"rank 2", "did not come"}, "late");
                if (group.rank() == 1) seat.reset();
                board.tell();
              }
              survive(group, 2, 15);
              const std::int64_t began_ns = now_ns();
              if (group.rank() != 1) {
                require_status(play_view(group, *seat), Code::kMismatch, {"rank 1", "destroyed"},
                               "an exchange that rank 1 destroyed");
                require(now_ns() - began_ns < 5'000'000'000, "it waited for rank 1");
              }
              require_ok(group.barrier(), "the group goes on");
            },
            "", {.deadline = std::chrono::seconds(10)});
}

// Until a call of another thread of this rank is counted: one that waits when it is about to sleep.
void await_call(const Group& group) {
  const std::atomic<int>& num_calls = group.state()->survival().num_calls();
  for (int i = 0; i < 1000 && num_calls.load(std::memory_order_relaxed) == 0; ++i) nap(10);
}

// Another thread of rank 0 waits in a barrier.
TEST_P(LaterView, SurviveIsRefusedDuringACall) {
  const SharedBoard board;
  run_ranks(GetParam(), 2, [&](Group group) {
    if (group.rank() == 1) {
      board.await_told(1);
      return require_ok(group.barrier(), "barrier");
    }
    Status waited, refused;
    {
      const std::jthread other([&] { waited = group.barrier(); });
      await_call(group);
      refused = group.survive();
      board.tell();
    }
    require_status(refused, Code::kInvalidArgument, {"another thread of rank 0"}, "survive");
    require_ok(waited, "the barrier of the other thread");
    require(group.usable() && group.view().number == 1, "the view goes on");
  });
}

// Another thread of rank 0 makes an exchange, for which rank 1 has not come yet.
TEST_P(LaterView, SurviveIsRefusedWhileAnExchangeIsMade) {
  const SharedBoard board;
  run_ranks(GetParam(), 2, [&](Group group) {
    if (group.rank() == 1) {
      board.await_told(1);
      const Exchange exchange(group, fault_config());
      return require_ok(group.barrier(), "barrier");
    }
    Status refused;
    std::optional<Exchange> made;
    {
      const std::jthread other([&] { made.emplace(group, fault_config()); });
      await_call(group);
      refused = group.survive();
      board.tell();
    }
    require_status(refused, Code::kInvalidArgument, {"another thread of rank 0", "makes"},
                   "beside");
    require(made.has_value(), "the other thread made its exchange");
    require_ok(group.barrier(), "barrier");
    require(group.usable() && group.view().number == 1, "the view goes on");
  });
}

// Another thread of rank 0 is in survive(), to which rank 1 has not come yet.
TEST_P(LaterView, ASecondSurviveAndACreationAreRefusedDuringSurvive) {
  const SharedBoard board;
  run_ranks(GetParam(), 2, [&](Group group) {
    if (group.rank() == 1) {
      board.await_told(1);
      require_ok(group.survive(), "survive");
    } else {
      Status survived, second, made;
      {
        const std::jthread other([&] { survived = group.survive(); });
        const std::atomic<bool>& surviving = group.state()->survival().surviving();
        for (int i = 0; i < 1000 && !surviving.load(std::memory_order_relaxed); ++i) nap(10);
        second = group.survive(std::chrono::seconds(1));
        made = error_of([&] { Exchange(group, fault_config()); });
        board.tell();
      }
      for (const Status& status : {second, made})
        require_status(status, Code::kInvalidArgument, {"another thread of rank 0"}, "beside");
      require_ok(survived, "survive of the other thread");
    }
    require(group.usable() && group.view().number == 2, "view 2 began");
    const Exchange exchange(group, fault_config());
    require_ok(group.barrier(), "barrier");
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, LaterView, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, LaterView, testing::Values(Mode::kProcesses));

// A rank may open no socket where the ranks of view 2 meet: the one to which the others connect, or
// another one. The others get its name at once, and in view 3 all meet.
TEST(LaterViewMeeting, ARankThatCannotMeetTheOthersIsNamed) {
  if (kSanitized)
    GTEST_SKIP()
        << "UndefinedBehaviorSanitizer needs descriptors: it looks at memory through a pipe";
  if (test_nodes(kRanks).several())
    GTEST_SKIP() << "UCX needs descriptors, and the ranks of other nodes wait until their deadline";
  for (const int refused : {1, 2}) {
    run_ranks(
        Mode::kProcesses, kRanks,
        [&](Group group) {
          if (group.rank() == 0) return group.destroy();
          survive(group, 2, 14);
          rlimit usual{};
          require(getrlimit(RLIMIT_NOFILE, &usual) == 0, "getrlimit");
          const int next = dup(0);
          close(next);
          const rlimit full{static_cast<rlim_t>(next), usual.rlim_max};
          if (group.rank() == refused) require(setrlimit(RLIMIT_NOFILE, &full) == 0, "setrlimit");
          const auto began = std::chrono::steady_clock::now();
          const auto make = [&] { Exchange(group, fault_config()); };
          for (int i = 0; i < 2; ++i) {
            const Status status = error_of(make);
            require(status.code() == Code::kSystem, status.message());
            if (group.rank() == refused) continue;
            require(status.culprit() == refused, status.message());
            require_status(status, Code::kSystem, {"rank " + std::to_string(refused)}, "others");
          }
          require(std::chrono::steady_clock::now() - began < std::chrono::seconds(5), "too long");
          require(group.usable(), "the view goes on");
          require_ok(group.barrier(), "all have seen it");
          require(setrlimit(RLIMIT_NOFILE, &usual) == 0, "setrlimit");
          survive(group, 3, 14);
          make();
          require_ok(group.barrier(), "an exchange of view 3");
        },
        "", {.deadline = std::chrono::seconds(20)});
  }
}

// Rank 0 is killed, and then another one while the others make an exchange in view 2: before it has
// come to where they meet, or after they have met there.
TEST(LaterViewDeath, WhileAnExchangeIsMade) {
  const Scenario scenario = scenario_among(kRanks, fault_config(), {1, 2, 3}, 100);
  for (const int victim : {1, 2}) {
    for (const bool met : {false, true}) {
      const std::vector<int> left = victim == 1 ? std::vector{2, 3} : std::vector{1, 3};
      const Scenario last = scenario_among(kRanks, fault_config(), left, 101);
      const SharedBoard board;
      ProcessRanks ranks(kRanks, {}, [&](Group group) {
        if (group.rank() == 0) strike_self(*board, SIGKILL);
        require_status(group.barrier(), Code::kPeerLost, {"rank 0"}, "rank 0 was killed");
        survive(group, 2, 14);
        std::optional<Seat> seat;
        if (met) seat.emplace(group, scenario);
        if (group.rank() == victim) {
          nap(30);
          strike_self(*board, SIGKILL);
        }
        const std::int64_t began_ns = now_ns();
        const Status status = error_of([&] { Exchange(group, fault_config()); });
        require_status(status, Code::kPeerLost, {"rank " + std::to_string(victim)}, "creation");
        require(now_ns() - began_ns < 5'000'000'000, "the death was told late");
        survive(group, 3, 14 & ~(1 << victim));
        if (seat) require_ok(play_view(group, *seat), "an exchange of view 2");
        Seat another(group, last);
        for (int i = 0; i < 3; ++i) require_ok(play_view(group, another), "an exchange of view 3");
        require_collectives(group, victim);
      });
      std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(30));
      ends[0] = ends[victim] = {};
      expect_all_well(ends, "victim " + std::to_string(victim) + (met ? ", met" : ""));
    }
  }
}

}  // namespace
}  // namespace ferry::test
