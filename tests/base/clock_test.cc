// A deadline counts the whole time of a rank that sleeps for remaining_ms().
#include "base/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace ferry::internal {
namespace {

using std::chrono::milliseconds;

TEST(Deadline, WhoeverSleepsUntilItEndsInTime) {
  constexpr int kAMinute = 60'000;
  const std::int64_t began = now_ns();
  const Deadline deadline = Deadline::after(milliseconds(700));
  while (!deadline.passed()) {
    ASSERT_LE(deadline.remaining_ms(kAMinute), Deadline::kLongestSleepMs);
    std::this_thread::sleep_for(milliseconds(deadline.remaining_ms(kAMinute)));
  }
  EXPECT_GE(now_ns() - began, 700'000'000);
  EXPECT_EQ(deadline.remaining_ms(), 0);
}

TEST(Deadline, TimeInWhichNobodyLookedCountsForOneLook) {
  const Deadline deadline = Deadline::after(milliseconds(600));
  std::this_thread::sleep_for(milliseconds(700));
  EXPECT_FALSE(deadline.passed());
}

}  // namespace
}  // namespace ferry::internal
