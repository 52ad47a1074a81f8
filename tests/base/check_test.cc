// FERRY_CHECK: the error of an invariant that does not hold.
#include "base/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::internal {
namespace {

TEST(Check, AnInvariantThatHoldsCostsNoText) { EXPECT_NO_THROW(FERRY_CHECK(1 + 1, ==, 2)); }

TEST(Check, TheErrorShowsThePlaceTheComparisonAndBothValues) {
  const int rows = 7;
  try {
    FERRY_CHECK(rows, <=, 3);
    FAIL() << "nothing was thrown";
  } catch (const InvariantError& error) {
    EXPECT_EQ(error.code(), Code::kBroken);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("check_test.cc:15: rows <= 3 does not hold: 7 and 3"));
  }
}

TEST(Check, ShowsEnumeratorsAndPointers) {
  EXPECT_EQ(checked_value(Code::kTimeout), fmt::format("{}", static_cast<int>(Code::kTimeout)));
  EXPECT_EQ(checked_value(static_cast<const int*>(nullptr)), "0x0");
}

}  // namespace
}  // namespace ferry::internal
