// StoreChoice: the stores that it tries, that it keeps, and that it chooses for sizes that were not
// tried.
#include "exchange/workers/store_choice.h"

#include <gtest/gtest.h>

namespace ferry::internal {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr Stores kCached = Stores::kCached, kStreaming = Stores::kStreaming;

// ns for each byte.
struct Costs {
  int send, reduce;
};

constexpr std::int64_t kPairNs = 1'000'000;

// `count` dispatches, each with its combine; how many of them used streaming stores.
int exchange(StoreChoice& choice, std::uint64_t bytes, int count, Costs cached, Costs streaming) {
  static std::int64_t now_ns = 0;
  int streamed = 0;
  for (int i = 0; i < count; ++i) {
    const bool streams = choice.begin(bytes, now_ns += kPairNs) == kStreaming;
    const Costs& costs = streams ? streaming : cached;
    streamed += streams;
    choice.took(StoreChoice::kSend, bytes, 1000, 1000 * costs.send);
    EXPECT_EQ(choice.stores(bytes) == kStreaming, streams) << "combine differs from its dispatch";
    choice.took(StoreChoice::kReduce, bytes, 1000, 1000 * costs.reduce);
  }
  return streamed;
}

TEST(StoreChoice, BothAreTriedAndTheFasterIsKept) {
  LearnedStores learned;
  StoreChoice choice(4 * kMiB, 480 * kMiB, &learned);
  EXPECT_EQ(choice.stores(100 * kMiB), kCached);
  EXPECT_EQ(exchange(choice, 100 * kMiB, 100, {2, 2}, {1, 2}), 8 + 8 + 68);  // two trials
  EXPECT_EQ(choice.stores(100 * kMiB), kStreaming);
  LearnedStores learned_in_cache;
  StoreChoice in_cache(4 * kMiB, 480 * kMiB, &learned_in_cache);
  EXPECT_EQ(exchange(in_cache, 100 * kMiB, 100, {1, 1}, {2, 1}), 8);
}

TEST(StoreChoice, OneTrialAgainstTheChoiceIsNotEnough) {
  LearnedStores learned;
  StoreChoice choice(4 * kMiB, 480 * kMiB, &learned);
  EXPECT_EQ(exchange(choice, 20 * kMiB, 16, {2, 1}, {1, 1}), 8);  // it was disturbed
  EXPECT_EQ(exchange(choice, 20 * kMiB, 900, {1, 1}, {2, 1}), 8);
  EXPECT_EQ(exchange(choice, 20 * kMiB, 100 + 16, {2, 1}, {1, 1}), 8);  // and once more later
  EXPECT_EQ(exchange(choice, 20 * kMiB, 900, {1, 1}, {2, 1}), 8);
}

TEST(StoreChoice, WhatTheReaderPaysCounts) {
  LearnedStores learned;
  StoreChoice choice(4 * kMiB, 480 * kMiB, &learned);
  EXPECT_EQ(exchange(choice, 20 * kMiB, 100, {3, 1}, {2, 4}), 8);
}

// 200 MiB are more than twice the caches: streaming stores come first.
TEST(StoreChoice, TheTrialBeginsWithWhatTheCachesSuggest) {
  LearnedStores learned;
  StoreChoice choice(4 * kMiB, 48 * kMiB, &learned);
  EXPECT_EQ(choice.stores(200 * kMiB), kStreaming);
  EXPECT_EQ(exchange(choice, 200 * kMiB, 8, {1, 1}, {2, 1}), 8);
  EXPECT_EQ(exchange(choice, 200 * kMiB, 100, {1, 1}, {2, 1}), 8);  // the second trial
}

TEST(StoreChoice, TheFirstDispatchOfATrialIsNotCounted) {
  LearnedStores learned;
  StoreChoice choice(4 * kMiB, 480 * kMiB, &learned);
  const std::uint64_t bytes = 100 * kMiB;
  for (int trial = 0; trial < 2; ++trial) {
    for (const int ns : {1, 3, 3, 3, 3, 3, 3, 3, 9, 2, 2, 2, 2, 2, 2, 2}) {
      choice.begin(bytes, 0);
      choice.took(StoreChoice::kSend, bytes, 1000, 1000 * ns);
    }
  }
  EXPECT_EQ(choice.begin(bytes, 0), kStreaming);
}

TEST(StoreChoice, ItIsTriedAgain) {
  LearnedStores learned;
  StoreChoice choice(4 * kMiB, 480 * kMiB, &learned);
  exchange(choice, 100 * kMiB, 16 + 1000, {2, 1}, {1, 1});  // after the second trial began
  EXPECT_EQ(exchange(choice, 100 * kMiB, 100, {1, 1}, {2, 1}), 8 + 8);
}

// Two trials are a second apart, however many dispatches are made meanwhile.
TEST(StoreChoice, ItIsTriedAgainOnceASecond) {
  LearnedStores learned;
  StoreChoice choice(4 * kMiB, 480 * kMiB, &learned);
  const auto streamed = [&](std::int64_t ns) {
    int streamed = 0;
    for (int i = 0; i < 10'000; ++i) streamed += choice.begin(20 * kMiB, ns) == kStreaming;
    return streamed;
  };
  EXPECT_EQ(streamed(0), 8);
  EXPECT_EQ(streamed(999'999'999), 0);
  EXPECT_EQ(streamed(1'000'000'000), 8);
}

TEST(StoreChoice, WhatDidNotFitDoesNotIfItIsMore) {
  LearnedStores learned;
  StoreChoice choice(4 * kMiB, 480 * kMiB, &learned);
  exchange(choice, 50 * kMiB, 2 * 16 + 1, {2, 1}, {1, 1});
  EXPECT_EQ(choice.stores(400 * kMiB), kStreaming);
  EXPECT_EQ(choice.stores(20 * kMiB), kCached);
}

// 5 and 7 MiB are of one size to a factor of two, and 5 MiB fit the private caches.
TEST(StoreChoice, RowsInPrivateCachesAreNoPartOfATrial) {
  LearnedStores learned;
  StoreChoice choice(5 * kMiB, 480 * kMiB, &learned);
  exchange(choice, 7 * kMiB, 15, {3, 1}, {2, 1});  // but for the last dispatch
  choice.took(StoreChoice::kSend, 5 * kMiB, 1000, 1000);
  exchange(choice, 7 * kMiB, 1 + 16 + 1, {3, 1}, {2, 1});
  EXPECT_EQ(choice.stores(7 * kMiB), kStreaming);
}

TEST(StoreChoice, ALaterOneStartsFromWhatWasLearned) {
  LearnedStores learned;
  StoreChoice earlier(4 * kMiB, 480 * kMiB, &learned);
  StoreChoice made_before_the_trial(4 * kMiB, 480 * kMiB, &learned);
  exchange(earlier, 100 * kMiB, 2 * 16 + 1, {2, 2}, {1, 2});
  StoreChoice later(4 * kMiB, 480 * kMiB, &learned);
  for (StoreChoice* const choice : {&made_before_the_trial, &later}) {
    EXPECT_EQ(choice->stores(100 * kMiB), kStreaming);
    EXPECT_EQ(choice->stores(400 * kMiB), kStreaming);
    EXPECT_EQ(choice->stores(20 * kMiB), kCached);
    EXPECT_EQ(exchange(*choice, 100 * kMiB, 100, {1, 1}, {2, 1}), 100);
    EXPECT_FALSE(choice->trying(100 * kMiB));
  }
}

// It is not learned for good: a thousand dispatches later it is tried, and what is found is kept.
TEST(StoreChoice, WhatWasLearnedIsTriedAgain) {
  LearnedStores learned;
  learned.keep(27, kStreaming);  // 100 MiB
  StoreChoice choice(4 * kMiB, 480 * kMiB, &learned);
  EXPECT_EQ(exchange(choice, 100 * kMiB, 1000, {1, 1}, {2, 1}), 1000);
  EXPECT_EQ(learned.find(27), kStreaming);
  exchange(choice, 100 * kMiB, 2 * 16 + 1, {1, 1}, {2, 1});
  EXPECT_EQ(learned.find(27), kCached);
}

TEST(StoreChoice, OneTrialAgainstTheChoiceIsNotLearned) {
  LearnedStores learned;
  StoreChoice choice(4 * kMiB, 480 * kMiB, &learned);
  exchange(choice, 20 * kMiB, 16 + 1, {2, 1}, {1, 1});
  EXPECT_EQ(learned.find(25), std::nullopt);
  exchange(choice, 20 * kMiB, 16, {1, 1}, {2, 1});
  EXPECT_EQ(learned.find(25), kCached);
}

TEST(LearnedStores, GroupsOfAsManyRanksShareThem) {
  LearnedStores& learned = LearnedStores::of_groups(1'000'003);
  EXPECT_EQ(learned.find(25), std::nullopt);
  learned.keep(25, kCached);
  EXPECT_EQ(LearnedStores::of_groups(1'000'003).find(25), kCached);
  EXPECT_EQ(LearnedStores::of_groups(1'000'004).find(25), std::nullopt);
}

TEST(StoreChoice, PrivateCachesAndJobsOfSeveralNodesTryNothing) {
  LearnedStores learned;
  StoreChoice choice(4 * kMiB, 48 * kMiB, &learned);
  EXPECT_EQ(exchange(choice, 4 * kMiB, 100, {2, 1}, {1, 1}), 0);
  StoreChoice nodes(4 * kMiB, 48 * kMiB, nullptr);
  EXPECT_EQ(exchange(nodes, 20 * kMiB, 100, {2, 1}, {1, 1}), 0);
  EXPECT_EQ(exchange(nodes, 200 * kMiB, 100, {1, 1}, {2, 1}), 100);
}

}  // namespace
}  // namespace ferry::internal
