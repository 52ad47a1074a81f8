// A node has one speaker at a time, also where a thread of the speaker leaves the group while
// another one is in survive().
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "group/state.h"
#include "network/local_transport.h"
#include "scripted_rendezvous.h"

namespace ferry::internal {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 4;

TEST(Speaker, NextOneBeginsWhenTheLastOneHasLeft) {
  const test::LocalNetwork network;
  std::vector<std::unique_ptr<GroupState>> states(kRanks);
  std::atomic<bool> has_begun{false}, is_in_step{false};  // rank 0, to leave in a step
  std::atomic<bool> are_two{false};                       // speakers
  std::thread leaves;
  auto met = thread_rendezvous({0, 0, 1, 1});
  // A speaker first checks whether it is itself alive. Rank 0 leaves between this check and what it
  // then does as the speaker.
  auto of_rank_0 = std::make_unique<test::ScriptedRendezvous>(std::move(met[0]));
  of_rank_0->script = [&](int peer) {
    if (peer != 0 || states[0]->usable() || has_begun.exchange(true, std::memory_order_relaxed))
      return true;
    is_in_step.store(true, std::memory_order_relaxed);
    leaves = std::thread([&] { states[0]->leave(); });
    const auto end = std::chrono::steady_clock::now() + 200ms;
    while (!are_two.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
    is_in_step.store(false, std::memory_order_relaxed);
    return true;
  };
  met[0] = std::move(of_rank_0);
  auto of_rank_1 = std::make_unique<test::ScriptedRendezvous>(std::move(met[1]));
  of_rank_1->script = [&](int peer) {
    if (peer == 1 && is_in_step.load(std::memory_order_relaxed))
      are_two.store(true, std::memory_order_relaxed);
    return true;
  };
  met[1] = std::move(of_rank_1);
  const auto on_ranks = [](int first, const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = first; rank < kRanks; ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  };
  on_ranks(0, [&](int rank) {
    const auto by = Deadline::after(60s);
    states[rank] = std::make_unique<GroupState>(std::move(met[rank]), GroupOptions{}, GroupOrigin{},
                                                by, [&] { return network.transport(); });
  });
  std::thread survives([&] { static_cast<void>(states[0]->survive(30s)); });
  while (states[0]->usable()) std::this_thread::sleep_for(1ms);  // rank 0 has ended the view
  on_ranks(1, [&](int rank) {
    const Status status = states[rank]->survive(30s);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message();
  });
  survives.join();
  ASSERT_TRUE(leaves.joinable());
  leaves.join();
  EXPECT_FALSE(are_two.load(std::memory_order_relaxed));
}

}  // namespace
}  // namespace ferry::internal
