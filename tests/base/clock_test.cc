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

// So a rank that waits twice after its deadline waits no longer than one that waits once.
TEST(Deadline, WhatExtendsOneThatPassedCountsFromIt) {
  const Deadline passed = Deadline::after(milliseconds(-30));
  EXPECT_LE(passed.extended(milliseconds(100)).remaining_ns(), 70'000'000);
  const Deadline later = Deadline::after(std::chrono::minutes(1));
  EXPECT_LE(later.extended(milliseconds(100)).remaining_ns(), 100'000'000);
}

}  // namespace
}  // namespace ferry::internal
