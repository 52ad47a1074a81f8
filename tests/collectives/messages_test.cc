// Messages that wait: for which rank a rank is seen to wait, and which message goes first.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/waiting.h"
#include "collectives/refused_memory.h"
#include "exchange/frame.h"
#include "ferry/collectives.h"
#include "group/state.h"
#include "network/passing_transport.h"
#include "network/refusing_transport.h"

namespace ferry::test {
namespace {

constexpr std::chrono::milliseconds kSoon{400};

void await_end_of(const Group& group) {
  while (group.usable()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Rank 0 makes no call, though it has a receive in progress. Ranks 1 and 2 wait for rank 0, and
// must name it.
TEST(MessageWaits, AThreadWithAnIdleReceiveIsNotSeenToWait) {
  run_ranks(Mode::kThreads, 3,
            [](const Group& group) {
              Collectives calls(group);
              require_ok(calls.barrier(), "barrier");
              if (group.rank() == 0) {
                float data = 0;
                const Message idle = calls.begin_recv(&data, 1, DataType::kFp32, 2, 0);
                require_status(calls.progress(), Code::kTimeout, {"rank 0"}, "progress");
                require(idle.ended(), "the idle receive");
                return;
              }
              const Status status = group.rank() == 2 ? calls.barrier(kSoon) : calls.barrier();
              require_status(status, Code::kTimeout, {"barrier 2", "rank 0"}, "barrier");
              require(status.culprit() == 0, "culprit " + std::to_string(status.culprit()));
            },
            "", {.deadline = std::chrono::seconds(20)});
}

// Two threads of each rank use one object.
TEST(MessageWaits, MessagesMoveInOneThreadWhileAnotherMakesTheCalls) {
  constexpr int kRounds = 300;
  run_ranks(Mode::kThreads, 2, [](const Group& group) {
    Collectives collectives(group);
    const int peer = 1 - group.rank();
    Status failure;
    std::jthread messages([&] {
      for (std::int32_t i = 0; i < kRounds && failure.ok(); ++i) {
        std::int32_t got = -1;
        failure = collectives.send(&i, 1, DataType::kInt32, peer, 0);
        if (failure.ok()) failure = collectives.recv(&got, 1, DataType::kInt32, peer, 0);
        if (failure.ok() && got != i) failure = {Code::kMismatch, "the message"};
      }
    });
    for (std::int32_t i = 0; i < kRounds; ++i) {
      std::int32_t sum = 0;
      require_ok(collectives.all_reduce(&i, &sum, 1, DataType::kInt32, ReduceOp::kSum), "sum");
      require(sum == 2 * i, "sum " + std::to_string(sum));
    }
    messages.join();
    require_ok(failure, "messages");
  });
}

// Rank 1 receives from rank 0, which receives from rank 2, which makes no call.
TEST(MessageWaits, ARankInARecvIsSeenToWaitForItsPeer) {
  run_ranks(
      Mode::kThreads, 3,
      [](const Group& group) {
        Collectives messages(group);
        require_ok(messages.barrier(), "barrier");
        if (group.rank() == 2) return await_end_of(group);
        float data = 0;
        const int peer = group.rank() == 0 ? 2 : 0;
        const std::chrono::nanoseconds limit = group.rank() == 1 ? kSoon : std::chrono::seconds(20);
        const Status status = messages.recv(&data, 1, DataType::kFp32, peer, 0, nullptr, limit);
        require(status.code() == Code::kTimeout && status.culprit() == 2, status.message());
      },
      "", {.deadline = std::chrono::seconds(20)});
}

// survive() in another thread is refused while this rank waits for a message. The receive waits in
// parts, and another message ends meanwhile.
TEST(MessageWaits, AThreadThatReceivesIsCountedUntilItReturns) {
  std::atomic<bool> looked{false};
  run_ranks(Mode::kThreads, 2, [&](const Group& group) {
    Collectives collectives(group);
    const float one = 1;
    if (group.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(120));
      require_ok(collectives.send(&one, 1, DataType::kFp32, 0, 1), "another message");
      while (!looked.load(std::memory_order_acquire))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return require_ok(collectives.send(&one, 1, DataType::kFp32, 0, 0), "the message");
    }
    const std::atomic<int>& num_calls = group.state()->survival().num_calls();
    const auto is_counted = [&] { return num_calls.load(std::memory_order_relaxed) > 0; };
    float got = 0, other = 0;
    const Message early = collectives.begin_recv(&other, 1, DataType::kFp32, 1, 1);
    Status received;
    std::jthread receiver([&] { received = collectives.recv(&got, 1, DataType::kFp32, 1, 0); });
    while (!is_counted()) std::this_thread::yield();
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
    bool counted = true;
    while (counted && std::chrono::steady_clock::now() < until) counted = is_counted();
    looked.store(true, std::memory_order_release);
    receiver.join();
    require_ok(received, "recv");
    require(early.ended() && other == 1 && got == 1, "both messages");
    require(counted, "the receive was not counted all the time");
  });
}

// The memory that a message needs is refused, at each place where it is requested.
TEST(MessageWaits, AMessageThatCannotBeginSaysWhy) {
  run_ranks(Mode::kThreads, 2, [](const Group& group) {
    Collectives collectives(group);
    float data = 1;
    if (group.rank() == 1)
      return require_ok(collectives.recv(&data, 1, DataType::kFp32, 0, 0), "recv");
    int refusals = 0;
    Message sent;
    for (; refusals < 100; ++refusals) {
      const RefusedMemory after(refusals);
      sent = collectives.begin_send(&data, 1, DataType::kFp32, 1, 0);
      if (!sent.ended()) break;
      require(sent.status().code() == Code::kCapacity, sent.status().message());
    }
    require(refusals > 0 && refusals < 100, std::to_string(refusals) + " refusals");
    while (!sent.ended()) require_ok(collectives.progress(), "progress");
    require_ok(sent.status(), "send");
  });
}

// All messages have come before the first receive.
TEST(MessageWaits, ReceivesFromAnyRankTakeMessagesOfAllSendersInTurn) {
  run_ranks(Mode::kThreads, 4, [](const Group& group) {
    constexpr int kEach = 5;
    Collectives collectives(group);
    std::int32_t number = 0;
    for (; group.rank() != 0 && number < kEach; ++number)
      require_ok(collectives.send(&number, 1, DataType::kInt32, 0, 0), "send");
    require_ok(collectives.barrier(), "barrier");
    std::vector<int> taken(4);  // by sender
    for (int i = 0; group.rank() == 0 && i < 3 * kEach; ++i) {
      int source = -1;
      require_ok(collectives.recv(&number, 1, DataType::kInt32, -1, 0, &source), "recv");
      require(number == taken[source]++, "messages of a sender are in order");
      require(number == i / 3, "message " + std::to_string(number) + " of rank " +
                                   std::to_string(source) + " is number " + std::to_string(i));
    }
  });
}

std::vector<std::int32_t> numbers(std::size_t bytes) {
  std::vector<std::int32_t> all(bytes / sizeof(std::int32_t));
  std::iota(all.begin(), all.end(), 7);
  return all;
}

// Rank 0 wants a small message, which comes behind a large one that it does not ask for until
// later.
TEST(MessageWaits, ASenderWaitsWhenItsReceiverKeeps64MiBOfOtherMessages) {
  constexpr std::size_t kBytes = std::size_t{66} << 20;
  run_ranks(Mode::kThreads, 2, [](const Group& group) {
    Collectives collectives(group);
    std::vector<std::int32_t> data = numbers(kBytes);
    const auto count = static_cast<std::int64_t>(data.size());
    const auto progress = [&] { require_ok(collectives.progress(/*waits=*/false), "progress"); };
    if (group.rank() == 1) {
      std::int32_t last = 5;
      const Message large = collectives.begin_send(data.data(), count, DataType::kInt32, 0, 1);
      const Message small = collectives.begin_send(&last, 1, DataType::kInt32, 0, 2);
      const std::int64_t until_ns = internal::now_ns() + 1'000'000'000;
      while (!large.ended() && internal::now_ns() < until_ns) progress();
      require(!large.ended(), "the message does not fit");
      require_ok(collectives.barrier(), "barrier");
      while (!small.ended()) require_ok(collectives.progress(), "progress");
      return;
    }
    std::int32_t last = 0;
    std::vector<std::int32_t> out(data.size());
    const Message wanted = collectives.begin_recv(&last, 1, DataType::kInt32, 1, 2);
    const std::int64_t until_ns = internal::now_ns() + 1'200'000'000;
    while (internal::now_ns() < until_ns) progress();
    require_ok(collectives.barrier(), "barrier");
    const Message large = collectives.begin_recv(out.data(), count, DataType::kInt32, 1, 1);
    while (!wanted.ended()) require_ok(collectives.progress(), "progress");
    require(large.ended() && out == data && last == 5, "both messages");
  });
}

// Rank 0 waits for a message that rank 1 never sends, because rank 1 is still sending the one
// before.
TEST(MessageWaits, ARankThatCannotKeepWhatComesNamesTheSenderAtItsDeadline) {
  constexpr std::size_t kBytes = std::size_t{80} << 20;
  run_ranks(Mode::kThreads, 2, [](const Group& group) {
    Collectives collectives(group);
    std::vector<std::int32_t> data = numbers(kBytes);
    const auto count = static_cast<std::int64_t>(data.size());
    if (group.rank() == 1) {
      const Status status = collectives.send(data.data(), count, DataType::kInt32, 0, 1);
      require(status.code() == Code::kTimeout && status.culprit() >= 0, status.message());
      return;
    }
    std::int32_t last = 0;
    const Status status = collectives.recv(&last, 1, DataType::kInt32, 1, 2, nullptr,
                                           std::chrono::milliseconds(1500));
    require_status(status, Code::kTimeout, {"a message behind 64 MiB of others of rank 1"}, "recv");
  });
}

// Rank 0 keeps messages without data, of one tag or each of its own, until there is no room.
TEST(MessageWaits, KeptMessagesTakeNoMoreMemoryThanTheirBound) {
  if (kSanitized) GTEST_SKIP() << "it measures the memory of the allocator";
  for (const int step : {0, 1}) {
    run_ranks(Mode::kThreads, 2, [step](const Group& group) {
      Collectives collectives(group);
      if (group.rank() == 0) {
        const Status status = collectives.recv(nullptr, 0, DataType::kBytes, 1, -1);
        require(status.code() == Code::kTimeout, status.message());
        return;
      }
      const std::size_t before = mallinfo2().uordblks;
      int num_kept = 0;
      const auto send = [&] {
        return collectives.send(nullptr, 0, DataType::kBytes, 0, step * num_kept, kSoon);
      };
      for (; send().ok(); ++num_kept) {
      }
      const std::size_t grown = mallinfo2().uordblks - before;
      const std::string seen = std::to_string(num_kept) + " messages in " + std::to_string(grown);
      require(grown <= std::size_t{65} << 20, seen + " bytes");
      require(num_kept > 100'000, seen);
    });
  }
}

// All messages have come before the first receive. Tags are received from the last one to the
// first.
TEST(MessageWaits, KeptMessagesOfATagAreReceivedInTheOrderInWhichTheyWereSent) {
  constexpr std::int32_t kTags = 5, kEach = 3;
  run_ranks(Mode::kThreads, 2, [](const Group& group) {
    Collectives collectives(group);
    for (std::int32_t i = 0; group.rank() == 1 && i < kTags * kEach; ++i)
      require_ok(collectives.send(&i, 1, DataType::kInt32, 0, i % kTags), "send");
    require_ok(collectives.barrier(), "barrier");
    for (std::int32_t i = 0; group.rank() == 0 && i < kTags * kEach; ++i) {
      const std::int32_t tag = kTags - 1 - i / kEach;
      std::int32_t number = -1;
      require_ok(collectives.recv(&number, 1, DataType::kInt32, i % 2 == 0 ? 1 : -1, tag), "recv");
      require(number == i % kEach * kTags + tag, "message " + std::to_string(number));
    }
  });
}

// Rank 1 sends messages of another tag all the time, which wake the receiver.
TEST(MessageWaits, ADeadlineHoldsWhileOtherMessagesCome) {
  std::atomic<bool> over{false};
  run_ranks(Mode::kThreads, 2, [&](const Group& group) {
    Collectives collectives(group);
    std::int32_t number = 0;
    if (group.rank() == 1) {
      while (!over.load(std::memory_order_relaxed) &&
             collectives.send(&number, 1, DataType::kInt32, 0, 2).ok())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const auto began = std::chrono::steady_clock::now();
    const Status status = collectives.recv(&number, 1, DataType::kInt32, -1, 1, nullptr,
                                           std::chrono::milliseconds(300));
    over.store(true, std::memory_order_relaxed);
    require_status(status, Code::kTimeout, {"recv"}, "recv");
    require(std::chrono::steady_clock::now() - began < std::chrono::seconds(5), "took too long");
  });
}

#ifdef FERRY_TESTS_BETWEEN_NODES
// While `stalls`, packets stay where they are.
class StallingTransport final : public PassingTransport {
 public:
  StallingTransport(std::unique_ptr<internal::Transport> transport, std::atomic<bool>& stalls)
      : PassingTransport(std::move(transport)), stalls_(stalls) {}

  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override {
    if (kept_.empty() && !stalls_.load(std::memory_order_acquire))
      return PassingTransport::send(peer, head, body, ticket);
    kept_.push_back({peer, head, body, ticket});
    return false;
  }
  bool progress(const PacketReader& read, Events& events) override {
    bool moved = false;
    while (!kept_.empty() && !stalls_.load(std::memory_order_acquire)) {
      const Kept first = kept_.front();
      kept_.pop_front();
      if (PassingTransport::send(first.peer, first.head, first.body, first.ticket))
        events.sent.push_back(first.ticket);
      moved = true;
    }
    return PassingTransport::progress(read, events) || moved;
  }

 private:
  struct Kept {
    int peer;
    std::span<const std::byte> head, body;
    void* ticket;
  };
  std::atomic<bool>& stalls_;
  std::deque<Kept> kept_;
};

TEST(MessagesBetweenNodes, ProgressWithoutWaitReturnsWhileTheNetworkStandsStill) {
  std::atomic<bool> stalls{false};
  const FrameTransports transports(
      [&] { return std::make_unique<StallingTransport>(internal::ucx_transport(), stalls); });
  run_ranks(Mode::kThreads, 2,
            [&](const Group& group) {
              Collectives collectives(group);
              float data = static_cast<float>(group.rank());
              require_ok(collectives.barrier(), "barrier");
              if (group.rank() == 1) {
                require_ok(collectives.recv(&data, 1, DataType::kFp32, 0, 0), "recv");
                require(data == 0, "the message");
                return;
              }
              stalls.store(true, std::memory_order_release);
              const Message sent = collectives.begin_send(&data, 1, DataType::kFp32, 1, 0);
              for (int i = 0; i < 10; ++i)
                require_ok(collectives.progress(/*waits=*/false), "progress");
              require(!sent.ended(), "a message that has not left has not ended");
              stalls.store(false, std::memory_order_release);
              while (!sent.ended()) require_ok(collectives.progress(/*waits=*/false), "progress");
              require_ok(sent.status(), "send");
            },
            "", {.deadline = std::chrono::seconds(5), .topology = "host:2,rank:1"});
}

// Rank 0 is not connected to rank 3 before its first message to it. Rank 3 listens to rank 0, and
// so has to be told of the end of the group; rank 0 leaves although it cannot.
TEST(MessagesBetweenNodes, AnExceptionEndsAllMessagesAndTheGroup) {
  std::atomic<int> refusals{0};
  const FrameTransports transports(
      [&] { return std::make_unique<RefusingTransport>(internal::ucx_transport(), refusals); });
  run_ranks(Mode::kThreads, 4,
            [&](const Group& group) {
              Collectives collectives(group);
              float data = 0;
              Message awaited;
              if (group.rank() == 3) {
                awaited = collectives.begin_recv(&data, 1, DataType::kFp32, 0, 1);
                require_ok(collectives.progress(/*waits=*/false), "progress");
              }
              require_ok(collectives.barrier(), "barrier");
              if (group.rank() != 0) {
                const Status status = collectives.barrier();
                require(status.code() == Code::kBroken && status.culprit() == 0, status.message());
                return;
              }
              for (int i = 0; i < 10; ++i) {
                require_ok(collectives.progress(/*waits=*/false), "progress");
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
              }
              refusals.store(1'000'000, std::memory_order_release);
              const Message idle = collectives.begin_recv(&data, 1, DataType::kFp32, 1, 0);
              const Message sent = collectives.begin_send(&data, 1, DataType::kFp32, 3, 0);
              const Status status = collectives.progress();
              require_status(status, Code::kBroken, {"no endpoint is left"}, "progress");
              for (const Message& message : {idle, sent}) {
                require(message.ended(), "an exception ends every message");
                require_status(message.status(), Code::kBroken, {"no endpoint is left"}, "message");
              }
            },
            "", {.deadline = std::chrono::seconds(5), .topology = "host:2,rank:2"});
}
#endif

}  // namespace
}  // namespace ferry::test
