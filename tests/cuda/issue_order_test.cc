// IssueOrder: ranks that share a device wait until the others have issued as much, and no longer.
// Runs on every machine.
#include "cuda/issue_order.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/clock.h"

namespace ferry::internal {
namespace {

using std::chrono::milliseconds;

TEST(IssueOrder, AloneNobodyIsAwaited) {
  IssueOrder order;
  order.issued(CudaPhase::kCounts);
  EXPECT_FALSE(order.has_others());
  EXPECT_EQ(order.await(CudaPhase::kCounts, milliseconds(0)), -1);
}

TEST(IssueOrder, NamesTheRankThatHasIssuedLessOfThePhase) {
  IssueOrder order, first, second;
  order.add(3, first.counts());
  order.add(5, second.counts());
  order.issued(CudaPhase::kRows);
  first.issued(CudaPhase::kRows);
  second.issued(CudaPhase::kCounts);
  EXPECT_EQ(order.await(CudaPhase::kRows, milliseconds(5)), 5);
  second.issued(CudaPhase::kRows);
  EXPECT_EQ(order.await(CudaPhase::kRows, milliseconds(5)), -1);
}

TEST(IssueOrder, WaitsUntilTheOthersHaveIssued) {
  IssueOrder order, other;
  order.add(1, other.counts());
  order.issued(CudaPhase::kOutputs);
  std::thread late([&other] {
    std::this_thread::sleep_for(milliseconds(20));
    other.issued(CudaPhase::kOutputs);
  });
  const std::int64_t begin = now_ns();
  EXPECT_EQ(order.await(CudaPhase::kOutputs, std::chrono::seconds(20)), -1);
  EXPECT_GE(now_ns() - begin, 15'000'000);
  late.join();
}

TEST(IssueOrder, RankThatLeftIsNotAwaited) {
  IssueOrder order, other;
  order.add(1, other.counts());
  order.issued(CudaPhase::kReuse);
  other.leave();
  EXPECT_EQ(order.await(CudaPhase::kReuse, milliseconds(0)), -1);
}

}  // namespace
}  // namespace ferry::internal
