// The inputs and outputs that a real CANN run of MoeDistributeDispatch printed: 2 ranks, 32
// experts, the inputs and outputs of rank 0. K is not known; any K with which the ids of each token
// are distinct is possible.
#pragma once

#include <cstdint>
#include <vector>

#include "oracle/reference.h"

namespace ferry::test::cann_golden {

inline const std::vector<int> kTopK = {2, 3, 4, 6, 8, 12};
inline constexpr int kNumExperts = 32;

// Rank 0's expertIds, [Bs * K].
extern const std::vector<std::int64_t> kExpertIds;
// [Bs * K]: how many entries of rank 0 before this one name the same expert.
extern const std::vector<std::int32_t> kExpandIdx;
// [experts of rank 0, source rank]: inclusive running sums of the rows that rank 0 received.
extern const std::vector<std::int32_t> kSendCounts;
// [experts of rank 0]: inclusive prefix sums (expertTokenNumsType 0).
extern const std::vector<std::int64_t> kExpertTokenNums;

ExchangeConfig config(int top_k);

// Rank 0 gives kExpertIds. Rank 1's ids are not known: these have the counts that kSendCounts
// tells, distinct in each token, and fill up with experts of rank 1. Tokens are their own numbers,
// one byte each.
std::vector<internal::RankInput> inputs(int top_k);

}  // namespace ferry::test::cann_golden
