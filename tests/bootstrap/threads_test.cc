// The rendezvous of threads. ThreadSanitizer runs this too.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "bootstrap/agree.h"
#include "bootstrap/meeting.h"
#include "bootstrap/rendezvous.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

using Body = std::function<std::string(std::unique_ptr<Rendezvous>)>;

// Runs body(rendezvous) on a thread per rank; its results or errors.
std::vector<std::string> in_threads(int size, const Body& body) {
  std::vector<std::string> results(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  auto all = thread_rendezvous(std::vector<int>(static_cast<std::size_t>(size)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    threads.emplace_back([&body, &result = results[rank], mine = std::move(all[rank])]() mutable {
      try {
        result = body(std::move(mine));
      } catch (const Error& error) {
        result = fmt::format("{}: {}", code_name(error.code()), error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

class Threads : public testing::TestWithParam<int> {};

TEST_P(Threads, AllGatherKeepsRankOrder) {
  const int size = GetParam();
  const auto results = in_threads(size, [&](std::unique_ptr<Rendezvous> mine) -> std::string {
    for (int round = 0; round < 200; ++round) {
      const auto texts = mine->all_gather(fmt::format("{} {}", round, mine->rank()), soon());
      for (int peer = 0; peer < size; ++peer) {
        if (texts[static_cast<std::size_t>(peer)] != fmt::format("{} {}", round, peer))
          return "wrong";
      }
    }
    return "ok";
  });
  EXPECT_THAT(results, Each("ok"));
}

TEST_P(Threads, SegmentIsOneMappingAndEndsWithItsUsers) {
  std::weak_ptr<Segment> last;
  std::mutex mutex;
  const auto results = in_threads(GetParam(), [&](std::unique_ptr<Rendezvous> mine) -> std::string {
    for (int round = 0; round < 10; ++round) {
      const auto segment = mine->share_segment(1 << 20, soon());
      const auto address = fmt::format("{}", static_cast<void*>(segment->data()));
      for (const std::string& other : mine->all_gather(address, soon())) {
        if (other != address) return "two mappings";
      }
      const std::lock_guard lock(mutex);
      last = segment;
    }
    mine->all_gather("", soon());
    return last.expired() ? "ok" : "kept alive by the rendezvous";
  });
  EXPECT_THAT(results, Each("ok"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Threads, testing::Values(1, 2, 3, 8, 64));

TEST(Board, ALeavingRankIsNamedAtOnce) {
  const auto results = in_threads(3, [](std::unique_ptr<Rendezvous> mine) -> std::string {
    mine->all_gather("", soon());
    if (mine->rank() == 1) return "left";
    mine->all_gather("", soon());
    return "gathered";
  });
  EXPECT_EQ(results[1], "left");
  for (const std::size_t rank : {0, 2}) {
    EXPECT_THAT(results[rank], StartsWith("peer_lost: rank 1 left the group"));
  }
}

TEST(Board, ARankThatLeavesAfterItsTextDoesNoHarm) {
  for (int round = 0; round < 200; ++round) {
    const auto results = in_threads(4, [](std::unique_ptr<Rendezvous> mine) {
      return fmt::format("{}", mine->all_gather("x", soon()).size());
    });
    EXPECT_THAT(results, Each("4"));
  }
}

TEST(Board, MissingRanksAreNamedToAllAtTheFirstDeadline) {
  const auto results = in_threads(4, [](std::unique_ptr<Rendezvous> mine) -> std::string {
    if (mine->rank() == 2) {
      usleep(400'000);
    }
    mine->all_gather("", mine->rank() == 1 ? soon(milliseconds(100)) : soon());
    return "gathered";
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("timeout: "), HasSubstr("rank 2 of 4 did not come"),
                                  HasSubstr("deadline of rank 1"))));
}

TEST(Board, RefusedSegmentIsAnErrorOnAllRanksAndTheGroupGoesOn) {
  const auto results = in_threads(3, [](std::unique_ptr<Rendezvous> mine) -> std::string {
    std::string why;
    try {
      mine->share_segment(std::size_t{1} << 60, soon());
    } catch (const Error& error) {
      why = error.what();
    }
    return mine->share_segment(4096, soon()) ? why : "none";
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("rank 0: "), HasSubstr("1152921504606846976 bytes"))));
}

TEST(Agree, RankListsReadWell) {
  EXPECT_EQ(rank_list({}), "no rank");
  EXPECT_EQ(rank_list({3}), "rank 3");
  EXPECT_EQ(rank_list({3, 4}), "ranks 3 and 4");
  EXPECT_EQ(rank_list({1, 4, 5, 6, 9}), "ranks 1, 4 to 6 and 9");
  EXPECT_EQ(rank_list({0, 1, 2, 3}), "ranks 0 to 3");
}

}  // namespace
}  // namespace ferry::internal
