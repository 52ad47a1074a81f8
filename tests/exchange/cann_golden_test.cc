// The oracle's dispatch reproduces what a real CANN run printed, for every K that it may have had.
#include "cann_golden.h"

#include <gmock/gmock.h>

#include <set>

namespace ferry::test {
namespace {

using internal::RankReceived;

std::vector<RankReceived> received(int top_k) {
  return internal::reference_dispatch(cann_golden::config(top_k), cann_golden::inputs(top_k));
}

TEST(CannGolden, IdsOfATokenAreDistinct) {
  for (const int top_k : cann_golden::kTopK) {
    for (const internal::RankInput& input : cann_golden::inputs(top_k)) {
      ASSERT_EQ(input.topk_ids.size(), cann_golden::kExpertIds.size());
      for (std::int64_t token = 0; token < input.num_tokens; ++token) {
        const auto first = input.topk_ids.begin() + token * top_k;
        EXPECT_EQ(std::set(first, first + top_k).size(), static_cast<std::size_t>(top_k));
      }
    }
  }
}

TEST(CannGolden, RunningCountsAreSendCounts) {
  for (const int top_k : cann_golden::kTopK)
    EXPECT_THAT(received(top_k)[0].running_counts,
                testing::ElementsAreArray(cann_golden::kSendCounts));
}

TEST(CannGolden, RowsOfExpertsSumUpToExpertTokenNums) {
  for (const int top_k : cann_golden::kTopK) {
    const std::vector<RankReceived> ranks = received(top_k);
    std::vector<std::int64_t> prefix;
    for (const std::int64_t rows : ranks[0].tokens_per_expert)
      prefix.push_back(rows + (prefix.empty() ? 0 : prefix.back()));
    EXPECT_EQ(prefix, cann_golden::kExpertTokenNums);
  }
}

// expandIdx of an entry is its place among the rows of its expert and source.
TEST(CannGolden, PlacesOfRowsAreExpandIdx) {
  for (const int top_k : cann_golden::kTopK) {
    std::vector<std::int32_t> expand_idx(cann_golden::kExpertIds.size(), -1);
    for (const RankReceived& rank : received(top_k)) {
      for (std::int64_t row = 0, place = 0; row < rank.num_rows; ++row, ++place) {
        const std::int32_t* const source = &rank.sources[3 * row];
        // A running count is where the rows of an expert and source end and others begin.
        for (std::size_t i = 0; i + 1 < rank.running_counts.size(); ++i) {
          if (rank.running_counts[i] == row) place = 0;
        }
        if (source[0] == 0) expand_idx[source[1] * top_k + source[2]] = static_cast<int>(place);
      }
    }
    EXPECT_EQ(expand_idx, cann_golden::kExpandIdx);
  }
}

}  // namespace
}  // namespace ferry::test
