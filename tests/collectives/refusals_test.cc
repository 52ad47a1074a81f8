// Calls that are refused: all ranks get an error that names ranks and values, and the next call
// works. Ranks that die or are late: the others name them.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "collectives/caller.h"
#include "collectives/refused_memory.h"
#include "exchange/frame.h"
#include "exchange/victim.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 4;

struct Where {
  Mode mode;
  const char* topology;
};

void PrintTo(const Where& where, std::ostream* stream) {
  *stream << mode_name(where.mode) << " " << where.topology;
}

class RefusedCalls : public testing::TestWithParam<Where> {
 protected:
  static void on_ranks(const std::function<void(Collectives&)>& body) {
    run_ranks(GetParam().mode, kRanks,
              [&](const Group& group) {
                Collectives collectives(group);
                body(collectives);
                make_moves(collectives, {1, 100, DataType::kFp32});
                require_ok(collectives.barrier(), "the last call");
              },
              "", {.deadline = std::chrono::seconds(20), .topology = GetParam().topology});
  }
};

TEST_P(RefusedCalls, ABadArgumentIsInvalidHereAndRejectedElsewhere) {
  on_ranks([](Collectives& c) {
    std::vector<float> in(8), out(8);
    const bool bad = c.rank() == 2;
    const auto refused = [&](const Status& status, const char* text) {
      require_status(status, bad ? Code::kInvalidArgument : Code::kPeerRejected, {text}, text);
      require(status.culprit() == 2 && status.group_usable(), status.message());
    };
    refused(c.all_reduce(bad ? nullptr : in.data(), out.data(), 8, DataType::kFp32, ReduceOp::kSum),
            "in is null, need 8 elements");
    refused(c.broadcast(in.data(), bad ? -1 : 8, DataType::kFp32, 0), "count is -1");
    refused(c.broadcast(in.data(), 8, DataType::kFp32, bad ? 4 : 0), "root is 4, need 0 to 3");
    refused(c.all_reduce(in.data(), out.data(), 8, DataType::kFp32,
                         bad ? ReduceOp::kBand : ReduceOp::kSum),
            "elements of fp32 cannot be reduced with op band");
    const std::int64_t counts[] = {2, 2, 2, 2}, wrong[] = {2, 2, -2, 2}, few[] = {2, 2};
    using Counts = Collectives::Counts;
    refused(c.all_to_all_v(in.data(), bad ? Counts(wrong) : Counts(counts), out.data(), counts,
                           DataType::kFp32),
            "in_counts[2] is -2");
    refused(
        c.gather_v(in.data(), out.data(), bad ? Counts(few) : Counts(counts), DataType::kFp32, 0),
        "counts has 2 elements, need one for each of 4 ranks");
    refused(c.all_gather_v(in.data(), bad ? 3 : 2, out.data(), counts, DataType::kFp32),
            "counts[2] is 2, and rank 2 gives 3 elements");
    refused(bad ? c.refuse({Code::kInvalidArgument, "not now", 2}) : c.barrier(), "not now");
    refused(c.barrier(bad ? std::chrono::nanoseconds(-1) : std::chrono::nanoseconds(0)),
            "the deadline is -1 ns");
  });
}

// Rank 2 gives memories that overlap: in a call of several rounds it would read what an earlier
// round has written.
TEST_P(RefusedCalls, MemoriesThatOverlapAreRefused) {
  on_ranks([](Collectives& c) {
    std::vector<float> data(32);
    float* const at = data.data();
    const bool bad = c.rank() == 2;
    const auto refused = [&](const Status& status, const char* text) {
      require_status(status, bad ? Code::kInvalidArgument : Code::kPeerRejected, {text}, text);
    };
    const std::int64_t counts[] = {2, 2, 2, 2};
    refused(c.all_to_all_v(at, counts, at + (bad ? 7 : 8), counts, DataType::kFp32),
            "out begins 28 bytes behind in, which has 32 bytes: they overlap");
    refused(c.all_to_all_v(at + (bad ? 0 : 8), counts, at, counts, DataType::kFp32),
            "out begins 0 bytes behind in");
    const auto place = [&](int shift) { return at + 2 * c.rank() + (bad ? shift : 0); };
    refused(c.all_gather_v(place(1), 2, at, counts, DataType::kFp32),
            "out begins -20 bytes behind in, which has 8 bytes");
    refused(c.reduce_scatter_v(at, counts, place(-2), DataType::kFp32, ReduceOp::kSum),
            "out begins 8 bytes behind in");
    refused(c.all_reduce(at, at + (bad ? 1 : 0), 8, DataType::kFp32, ReduceOp::kSum),
            "out begins 4 bytes behind in");
    refused(c.reduce(at, at + (bad ? 7 : 0), 8, DataType::kFp32, ReduceOp::kSum, 2),
            "out begins 28 bytes behind in");
    refused(c.gather_v(place(1), at, counts, DataType::kFp32, 2), "out begins -20 bytes behind in");
    refused(c.scatter_v(at, place(1), counts, DataType::kFp32, 2), "out begins 20 bytes behind in");
    // In its place, and where the root's memory alone counts.
    require_ok(c.gather_v(place(0), at, counts, DataType::kFp32, 2), "gather in place");
    require_ok(c.scatter_v(at, place(0), counts, DataType::kFp32, 2), "scatter in place");
    require_ok(c.reduce(at, at + (c.rank() == 0 ? 0 : 1), 8, DataType::kFp32, ReduceOp::kSum, 0),
               "reduce");
  });
}

TEST_P(RefusedCalls, CallsThatDifferAreAMismatchEverywhere) {
  on_ranks([](Collectives& c) {
    std::vector<float> in(16), out(16);
    const bool other = c.rank() == 3;
    const auto differ = [&](const Status& status, const std::vector<std::string>& parts) {
      require_status(status, Code::kMismatch, parts, parts[0]);
      require(status.group_usable(), status.message());
    };
    const auto reduce = [&](std::int64_t count, DataType dtype, ReduceOp op) {
      return c.all_reduce(in.data(), out.data(), count, dtype, op);
    };
    differ(other ? c.barrier() : reduce(8, DataType::kFp32, ReduceOp::kSum),
           {"rank 0 calls all_reduce of fp32, 8 elements, op sum", "rank 3 calls barrier"});
    differ(reduce(other ? 7 : 8, DataType::kFp32, ReduceOp::kSum), {"8 elements", "7 elements"});
    differ(reduce(8, other ? DataType::kFp16 : DataType::kFp32, ReduceOp::kSum), {"fp32", "fp16"});
    differ(reduce(8, DataType::kFp32, other ? ReduceOp::kMax : ReduceOp::kSum), {"sum", "max"});
    differ(c.broadcast(in.data(), 8, DataType::kFp32, other ? 1 : 0), {"root 0", "root 1"});
    const std::int64_t counts[] = {2, 2, 2, 2}, moved[] = {3, 1, 2, 2};
    using Counts = Collectives::Counts;
    differ(c.reduce_scatter_v(in.data(), other ? Counts(moved) : Counts(counts), out.data(),
                              DataType::kFp32, ReduceOp::kSum),
           {"counts[0] is 3 and not 2"});
    differ(c.all_to_all_v(in.data(), counts, out.data(), other ? Counts(moved) : Counts(counts),
                          DataType::kFp32),
           {"rank 0 sends 2 elements of fp32 to rank 3, which expects 3"});
  });
}

TEST_P(RefusedCalls, AMessageOfAnotherSizeStaysForTheNextReceive) {
  on_ranks([](Collectives& c) {
    std::vector<float> data(4, 3.0f);
    if (c.rank() == 1) require_ok(c.send(data.data(), 4, DataType::kFp32, 2, 5), "send");
    if (c.rank() != 2) return;
    std::vector<float> out(5);
    require_status(c.recv(out.data(), 5, DataType::kFp32, 1, 5), Code::kMismatch,
                   {"rank 1 sent 16 bytes of fp32 with tag 5, rank 2 expects 20"}, "size");
    require_status(c.recv(out.data(), 4, DataType::kInt32, -1, 5), Code::kMismatch, {"int32"},
                   "type");
    require_ok(c.recv(out.data(), 4, DataType::kFp32, 1, 5), "recv");
    require(out[3] == 3.0f, "the message");
    require_status(c.send(nullptr, 1, DataType::kFp32, 0, 0), Code::kInvalidArgument, {"null"},
                   "send");
    const Message refused = c.begin_send(nullptr, 1, DataType::kFp32, 0, 0);
    require(refused.ended(), "a refused message has ended");
    require_status(refused.status(), Code::kInvalidArgument, {"null"}, "begin_send");
    require_status(c.recv(out.data(), 1, DataType::kFp32, 4, 0), Code::kInvalidArgument,
                   {"peer is 4, need -1 to 3"}, "recv");
  });
}

TEST_P(RefusedCalls, ADestroyedObjectIsNamed) {
  on_ranks([](Collectives& c) {
    Collectives gone = std::move(c);
    require_ok(gone.barrier(), "barrier");
    require_status(c.barrier(), Code::kClosed, {"default-made or moved from"}, "moved from");
    c = std::move(gone);
  });
  run_ranks(GetParam().mode, 3,
            [](const Group& group) {
              Collectives collectives(group);
              require_ok(collectives.barrier(), "barrier");
              if (group.rank() == 1) {
                collectives = Collectives();
              } else {
                require_status(collectives.barrier(), Code::kMismatch,
                               {"barrier 2: rank 1 destroyed its Collectives"}, "destroyed");
              }
              Group members = group;
              require_ok(members.barrier(), "the group goes on");
            },
            "", {.deadline = std::chrono::seconds(20)});
}

TEST_P(RefusedCalls, OptionsThatDifferAreNamedAtCreation) {
  run_ranks(GetParam().mode, 2,
            [](const Group& group) {
              const auto make = [&](std::int64_t window_bytes) {
                return error_of([&] { Collectives(group, {.window_bytes = window_bytes}); });
              };
              require_status(
                  make(group.rank() == 0 ? 8192 : 16384), Code::kMismatch,
                  {"make different Collectives objects", "window_bytes", "8192", "16384"},
                  "options");
              require_status(make(group.rank() == 0 ? 100 : 8192),
                             group.rank() == 0 ? Code::kInvalidArgument : Code::kPeerRejected,
                             {"window_bytes is 100, need 256 to"}, "too small");
              require_status(error_of([&] { Collectives none{Group()}; }), Code::kClosed,
                             {"not a member"}, "no group");
              Collectives collectives(group);
              require_ok(collectives.barrier(), "the group goes on");
            },
            "", {.deadline = std::chrono::seconds(20)});
}

// The flags of a rank count the rounds of a call. More rounds than they can count would be taken
// for those of the next call.
TEST_P(RefusedCalls, ACallOfMoreRoundsThanFlagsCountIsRefused) {
  run_ranks(GetParam().mode, 2,
            [](const Group& group) {
              Collectives c(group, {.window_bytes = 256});
              const std::int64_t most = std::int64_t{128} << 28;
              char none = 0;
              const auto refused = [&](const Status& status) {
                require_status(status, Code::kInvalidArgument,
                               {"rounds", "need at most 268435456", "larger window_bytes"},
                               "rounds");
              };
              refused(c.broadcast(&none, most + 1, DataType::kBytes, 0));
              refused(c.all_reduce(&none, &none, most + 1, DataType::kBytes, ReduceOp::kMax));
              const std::int64_t counts[] = {most + 1, most + 1};
              void* const out = reinterpret_cast<void*>(std::uintptr_t{1} << 56);  // untouched
              refused(c.all_to_all_v(&none, counts, out, counts, DataType::kBytes));
              require_ok(c.barrier(), "the next call");
            },
            "", {.deadline = std::chrono::seconds(20), .topology = ""});
}

// Rank 2 gets no memory, at each place where a call requests it. Between nodes one request is
// refused: to tell other nodes takes memory.
TEST_P(RefusedCalls, MemoryThatIsRefusedIsAnErrorOnAllRanks) {
  const bool once = *GetParam().topology != '\0';
  on_ranks([once](Collectives& c) {
    constexpr std::int64_t kEach = 50'000;
    const std::vector<std::int64_t> counts(kRanks, kEach);
    std::vector<float> in(kRanks * kEach), out(kRanks * kEach);
    const auto refused = [&](const char* name, bool allocates, const auto& call) {
      int refusals = 0;
      for (; refusals < 100; ++refusals) {
        Status status;
        {
          const RefusedMemory after(c.rank() == 2 ? refusals : -1, once);
          status = call();
        }
        if (status.ok()) break;
        require_status(status, c.rank() == 2 ? Code::kCapacity : Code::kPeerRejected,
                       {"out of memory"}, name);
        require(status.culprit() == 2, std::to_string(status.culprit()));
      }
      require(refusals < 100 && (refusals > 0 || !allocates),
              std::string(name) + ": " + std::to_string(refusals) + " refusals");
    };
    // The first large message to a node needs memory.
    refused("all_gather_v", once,
            [&] { return c.all_gather_v(in.data(), kEach, out.data(), counts, DataType::kFp32); });
    refused("scatter_v", true,
            [&] { return c.scatter_v(in.data(), out.data(), counts, DataType::kFp32, 0); });
    refused("gather_v", true,
            [&] { return c.gather_v(in.data(), out.data(), counts, DataType::kFp32, 0); });
    refused("all_to_all_v", false,
            [&] { return c.all_to_all_v(in.data(), counts, out.data(), counts, DataType::kFp32); });
    refused("broadcast", false, [&] { return c.broadcast(in.data(), 9, DataType::kFp32, 0); });
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, RefusedCalls, testing::Values(Where{Mode::kThreads, ""}));
INSTANTIATE_TEST_SUITE_P(Processes, RefusedCalls, testing::Values(Where{Mode::kProcesses, ""}));
#ifdef FERRY_TESTS_BETWEEN_NODES
INSTANTIATE_TEST_SUITE_P(Nodes, RefusedCalls,
                         testing::Values(Where{Mode::kThreads, "host:2,rank:2"}));
#endif

// Rank 1 dies, or does not come, in a call; the others name it.
void expect_named(int signal, const Status& expected,
                  const std::function<Status(Collectives&)>& call,
                  const std::vector<std::string>& parts) {
  const SharedBoard board;
  GroupOptions options;
  if (signal == SIGSTOP) options.deadline = std::chrono::milliseconds(600);
  ProcessRanks ranks(3, options, [&](const Group& group) {
    Collectives collectives(group);
    require_ok(collectives.barrier(), "barrier");
    if (group.rank() == 1) strike_self(*board, signal);
    Status status = call(collectives);
    board.tell();
    if (group.rank() == 1) return;
    const double seconds =
        static_cast<double>(now_ns() - board->struck_ns.load(std::memory_order_acquire)) * 1e-9;
    require_status(status, expected.code(), parts, "the others");
    require(status.culprit() == 1, "culprit " + std::to_string(status.culprit()));
    require(seconds < (signal == SIGKILL ? 1.0 : 2.0), std::to_string(seconds) + " s");
    require_status(collectives.barrier(), Code::kBroken, {"rank 1"}, "afterwards");
  });
  if (signal == SIGSTOP) board.await_told(2);
  ranks.send_signal(1, SIGCONT);
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
  if (signal == SIGKILL) ends[1] = {};
  expect_all_well(ends, parts[0]);
}

Status large_all_reduce(Collectives& collectives) {
  std::vector<float> data(3'000'000, 1.0f);
  return collectives.all_reduce(data.data(), data.data(), 3'000'000, DataType::kFp32,
                                ReduceOp::kSum);
}

TEST(CollectivesFaults, ARankThatDiesInACallIsNamedWithItsProcess) {
  expect_named(SIGKILL, {Code::kPeerLost, ""}, large_all_reduce,
               {"all_reduce 2", "rank 1 (pid ", "is dead"});
}

TEST(CollectivesFaults, ARankThatDiesWhileAMessageIsAwaitedIsNamed) {
  expect_named(SIGKILL, {Code::kPeerLost, ""},
               [](Collectives& c) {
                 float data = 0;
                 return c.recv(&data, 1, DataType::kFp32, c.rank() == 0 ? 1 : -1, 0);
               },
               {"recv 1", "rank 1 (pid ", "is dead"});
}

// Rank 0 receives from any rank while rank 1 leaves; rank 2 sends after that, and leaves too.
TEST(CollectivesWaits, ARankThatLeavesDoesNotEndAReceiveFromAny) {
  std::atomic<bool> left{false};
  run_ranks(Mode::kThreads, 3, [&](Group group) {
    Collectives collectives(group);
    const int rank = group.rank();
    float data = static_cast<float>(rank);
    if (rank == 1) {
      group.destroy();
      left.store(true, std::memory_order_release);
      return;
    }
    if (rank == 2) {
      while (!left.load(std::memory_order_acquire)) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(120));
      require_ok(collectives.send(&data, 1, DataType::kFp32, 0, 0), "send");
      return;
    }
    int source = -1;
    require_ok(collectives.recv(&data, 1, DataType::kFp32, -1, 0, &source), "recv");
    require(source == 2 && data == 2.0f, "the message of rank 2");
    const Status status = collectives.recv(&data, 1, DataType::kFp32, -1, 0);
    require_status(status, Code::kPeerLost, {"recv 2", "has left the group"}, "all have left");
  });
}

TEST(CollectivesWaits, AReceiveFromAnyIsInterrupted) {
  std::atomic<bool> stop{false};
  const GroupOptions options{.deadline = std::chrono::seconds(20),
                             .interrupted = [&] { return stop.load(std::memory_order_acquire); }};
  run_threads(
      2,
      [&](const Group& group) {
        Collectives collectives(group);
        stop.store(true, std::memory_order_release);
        if (group.rank() == 1) {
          while (group.usable()) std::this_thread::yield();
          return;
        }
        float data = 0;
        const std::int64_t began_ns = now_ns();
        require_status(collectives.recv(&data, 1, DataType::kFp32, -1, 0), Code::kInterrupted,
                       {"recv 1", "rank 0", "was interrupted"}, "interrupted");
        require(now_ns() - began_ns < 10'000'000'000, "long before the deadline");
      },
      options);
}

TEST(CollectivesWaits, ACallEndsWhenAnotherThreadDestroysItsGroup) {
  for (const bool any : {false, true}) {
    std::atomic<bool> left{false};
    run_threads(2,
                [&](const Group& group) {
                  Collectives collectives(group);
                  if (group.rank() == 1) {
                    while (!left.load(std::memory_order_acquire)) std::this_thread::yield();
                    return;
                  }
                  Group same = group;
                  std::thread other([&] { same.destroy(); });
                  float data = 0;
                  const Status status = any ? collectives.recv(&data, 1, DataType::kFp32, -1, 0)
                                            : collectives.barrier();
                  other.join();
                  left.store(true, std::memory_order_release);
                  require_status(status, Code::kClosed, {"the group was destroyed"}, "closed");
                },
                {.deadline = std::chrono::seconds(5)});
  }
}

TEST(CollectivesFaults, ALateRankIsNamedAtTheDeadline) {
  expect_named(SIGSTOP, {Code::kTimeout, ""}, large_all_reduce,
               {"all_reduce 2", "rank 1", "came to call 1", "deadline 0.6 s"});
}

// Messages arrive while the receiver goes through its receives.
TEST(CollectivesWaits, ReceivesOfOneTagTakeMessagesInTheOrderOfTheSends) {
  run_ranks(Mode::kThreads, 3, [](const Group& group) {
    constexpr std::int32_t kMessages = 64;
    Collectives collectives(group);
    for (int round = 0; round < 100; ++round) {
      std::vector<std::int32_t> data(kMessages);
      std::vector<Message> begun;
      for (std::int32_t number = 0; number < kMessages && group.rank() < 2; ++number) {
        std::int32_t* const at = &data[number];
        if (group.rank() == 1) *at = number;
        begun.push_back(group.rank() == 1 ? collectives.begin_send(at, 1, DataType::kInt32, 0, 0)
                                          : collectives.begin_recv(at, 1, DataType::kInt32, 1, 0));
        if (group.rank() == 1) require_ok(collectives.progress(/*waits=*/false), "progress");
      }
      while (std::ranges::any_of(begun, [](const Message& each) { return !each.ended(); }))
        require_ok(collectives.progress(/*waits=*/false), "progress");
      for (std::int32_t number = 0; number < kMessages && group.rank() == 0; ++number)
        require(data[number] == number, "receive " + std::to_string(number) + " has message " +
                                            std::to_string(data[number]));
      require_ok(collectives.barrier(), "barrier");
    }
  });
}

// A wait finds no reason to give up while there is no memory for one.
TEST(CollectivesWaits, AWaitWithoutMemoryGoesOnUntilItsDeadline) {
  run_ranks(Mode::kThreads, 2, [](const Group& group) {
    Collectives collectives(group);
    if (group.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      require_ok(collectives.barrier(), "the late rank");
      while (Group(group).usable()) std::this_thread::yield();
      return require_status(collectives.barrier(), Code::kBroken,
                            {"rank 0 reported: out of memory"}, "the other rank");
    }
    Status early, late, later;
    {
      const RefusedMemory none(0);
      early = collectives.barrier();
      late = collectives.barrier(std::chrono::milliseconds(50));
      later = collectives.barrier();
    }
    require_ok(early, "a rank that comes late");
    require_status(late, Code::kBroken, {"out of memory"}, "a rank that does not come");
    require_status(later, Code::kBroken, {"out of memory"}, "afterwards");
    require(late.culprit() == 0 && later.culprit() == 0, "culprit");
  });
}

TEST(CollectivesWaits, ADeadlineOfACallIsShorterThanThatOfTheGroup) {
  run_ranks(Mode::kThreads, 2, [](const Group& group) {
    Collectives collectives(group);
    float data[3] = {};
    for (int call = 1; call < 14; ++call)
      require_ok(collectives.broadcast(data, call % 3, DataType::kFp32, 1), "broadcast");
    if (group.rank() == 0) {
      require_status(collectives.barrier(std::chrono::milliseconds(50)), Code::kTimeout,
                     {"barrier 14", "rank 1", "deadline 0.05 s"}, "late");
      const std::vector<std::string> own = collectives.latest_calls(0);
      const std::vector<std::string> late = collectives.latest_calls(1);
      require(own.size() == 10 && own.back() == "14: barrier", "own calls");
      require(late.size() == 10 && late.front() == "4: broadcast of fp32, 1 elements, root 1" &&
                  late.back() == "13: broadcast of fp32, 1 elements, root 1",
              "those of the late rank");
    } else {
      Group members = group;
      while (members.usable()) std::this_thread::yield();
    }
  });
}

}  // namespace
}  // namespace ferry::test
