// PendingTokens: which tokens of a combine are reduced early, and which remain.
#include "exchange/sums/pending_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::test {
namespace {

using internal::PendingTokens;
using testing::ElementsAre;

constexpr std::int64_t kAll = 1 << 20;

TEST(PendingTokens, ReadyTokensGoAndTheOthersRemainInOrder) {
  PendingTokens tokens;
  tokens.restart(8);
  EXPECT_TRUE(tokens.find_ready([](std::int64_t token) { return token % 3 == 1; }, kAll));
  EXPECT_THAT(tokens.ready(), ElementsAre(1, 4, 7));
  tokens.drop_ready();
  EXPECT_THAT(tokens.pending(), ElementsAre(0, 2, 3, 5, 6));
  EXPECT_TRUE(tokens.ready().empty());
}

TEST(PendingTokens, TheFirstReadyOnesAreTakenUpToTheLimit) {
  PendingTokens tokens;
  tokens.restart(40);
  EXPECT_EQ(tokens.few(), 3);
  EXPECT_TRUE(tokens.find_ready([](std::int64_t token) { return token > 4; }, tokens.few()));
  EXPECT_THAT(tokens.ready(), ElementsAre(5, 6, 7));
}

TEST(PendingTokens, TooFewReadyTokensAreNotWorthAPass) {
  PendingTokens tokens;
  tokens.restart(33);
  const auto only_two = [](std::int64_t token) { return token < 2; };
  EXPECT_FALSE(tokens.find_ready(only_two, kAll));
  EXPECT_TRUE(tokens.ready().empty());
  EXPECT_EQ(tokens.pending().size(), 33u);
  tokens.restart(32);
  EXPECT_TRUE(tokens.find_ready(only_two, kAll));
}

TEST(PendingTokens, ACombineWithoutTokensHasNothingReady) {
  PendingTokens tokens;
  tokens.restart(0);
  EXPECT_FALSE(tokens.find_ready([](std::int64_t) { return true; }, kAll));
  EXPECT_TRUE(tokens.pending().empty());
}

}  // namespace
}  // namespace ferry::test
