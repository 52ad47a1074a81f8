// How a wait ends. Before it fails because a rank is gone, or because it gave up, it looks at the
// flags once more: the rank may have raised its flag between the two looks. And it yields at most
// once where a yield takes long. The rendezvous, which the wait asks whether a rank is alive, makes
// things happen meanwhile.
#include "group/wait.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "group/state.h"
#include "network/local_transport.h"
#include "scripted_rendezvous.h"

namespace {

// While it is set, yields are counted and take long, as on a processor that other processes need.
std::atomic<bool> yields_take_long{false};
std::atomic<int> num_yields{0};

}  // namespace

// The engine calls this function in place of the C library's.
extern "C" int sched_yield() noexcept {
  if (!yields_take_long.load(std::memory_order_relaxed))
    return static_cast<int>(syscall(SYS_sched_yield));
  num_yields.fetch_add(1, std::memory_order_relaxed);
  return usleep(5'000);
}

namespace ferry::internal {
namespace {

// Rank 0 waits for a flag of each rank; that of rank 1, which is of its node, is not up.
class Wait : public testing::Test {
 protected:
  explicit Wait(const std::vector<int>& nodes) {
    auto met = thread_rendezvous(nodes);
    met[0] = std::make_unique<test::ScriptedRendezvous>(std::move(met[0]));
    states_.resize(nodes.size());
    const auto make = [this] { return network_.transport(); };
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto by = Deadline::after(std::chrono::seconds(60));
        states_[rank] = std::make_unique<GroupState>(std::move(met[rank]), GroupOptions{},
                                                     GroupOrigin{}, by, make);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) flags_[rank] = rank != 1;
  }

  void raise_of_rank_1() { raise(flags_[1], 1); }
  void rank_2_gives_up() { static_cast<void>(states_[2]->fail("a test")); }

  Status wait(std::function<bool(int peer)> script) {
    dynamic_cast<test::ScriptedRendezvous&>(states_[0]->rendezvous()).script = std::move(script);
    CallTime time(std::chrono::seconds(60));
    return states_[0]->wait({.operation = "test",
                             .number = 1,
                             .phase = "flags",
                             .flags = flags_.data(),
                             .stride_bytes = sizeof flags_[0],
                             .value = 1,
                             .time = &time,
                             .crowded = true});
  }

  // Rank 1 is seen alive three times, and then dead.
  void expect_at_most_one_long_yield() {
    int looks = 0;
    num_yields.store(0, std::memory_order_relaxed);
    yields_take_long.store(true, std::memory_order_relaxed);
    const Status status = wait([&looks](int peer) { return peer != 1 || ++looks <= 3; });
    yields_take_long.store(false, std::memory_order_relaxed);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    EXPECT_EQ(status.culprit(), 1);
    EXPECT_GT(looks, 3);
    EXPECT_LE(num_yields.load(std::memory_order_relaxed), 1);
  }

  const test::LocalNetwork network_;
  std::vector<std::unique_ptr<GroupState>> states_;
  std::array<std::atomic<std::uint64_t>, 4> flags_ = {};
};

class OneNode : public Wait {
 protected:
  OneNode() : Wait({0, 0, 0}) {}
};

class TwoNodes : public Wait {
 protected:
  TwoNodes() : Wait({0, 0, 1, 1}) {}
};

TEST_F(OneNode, RankThatEndsWithoutItsFlagIsLost) {
  const Status status = wait([](int peer) { return peer != 1; });
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.culprit(), 1);
}

TEST_F(OneNode, FlagThatCameBeforeTheRankEnded) {
  const Status status = wait([this](int peer) {
    if (peer == 1) raise_of_rank_1();
    return peer != 1;
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(OneNode, FlagThatCameBeforeTheRankDeparted) {
  const Status status = wait([this](int peer) {
    if (peer != 1) return true;
    raise_of_rank_1();
    states_[1]->leave();
    return false;
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(OneNode, AbortWordWithoutTheFlagEndsTheWait) {
  const Status status = wait([this](int) {
    rank_2_gives_up();
    return true;
  });
  EXPECT_FALSE(status.ok());
}

TEST_F(OneNode, FlagThatCameBeforeAnotherRankGaveUp) {
  const Status status = wait([this](int peer) {
    if (peer != 1) return true;
    raise_of_rank_1();
    rank_2_gives_up();
    return true;
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(OneNode, LossIsSeenAfterOneLongYield) { expect_at_most_one_long_yield(); }

TEST_F(TwoNodes, LossIsSeenAfterOneLongYield) { expect_at_most_one_long_yield(); }

}  // namespace
}  // namespace ferry::internal
