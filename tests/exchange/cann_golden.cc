// The printed numbers, and batches of two ranks that lead to them.
#include "cann_golden.h"

namespace ferry::test::cann_golden {

const std::vector<std::int64_t> kExpertIds = {
    11, 17, 29, 12, 24, 23, 1,  0,  16, 30, 18, 8,  2,  14, 11, 3,  30, 21, 12, 0,  10, 9,  6,  31,
    22, 27, 30, 21, 1,  24, 17, 11, 3,  19, 2,  29, 16, 13, 7,  27, 6,  29, 5,  22, 24, 19, 23, 2};
const std::vector<std::int32_t> kExpandIdx = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0,
                                              1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 2, 1, 1, 1, 1, 2,
                                              1, 0, 1, 1, 1, 0, 0, 1, 1, 2, 0, 1, 2, 1, 1, 2};
const std::vector<std::int32_t> kSendCounts = {2,  3,  5,  6,  9,  11, 13, 16, 16, 17, 18,
                                               22, 24, 27, 28, 30, 31, 32, 33, 34, 35, 36,
                                               39, 41, 43, 44, 45, 46, 47, 47, 47, 50};
const std::vector<std::int64_t> kExpertTokenNums = {3,  6,  11, 16, 17, 22, 27, 30,
                                                    32, 34, 36, 41, 44, 46, 47, 50};

namespace {

// As many ids as rank 0 has. Equal ids are neighbours in `sorted`; in the batch they belong to
// different tokens.
std::vector<std::int64_t> ids_of_rank_1(int top_k) {
  std::vector<std::int64_t> sorted;
  const auto num_local = static_cast<std::int64_t>(kExpertTokenNums.size());
  for (std::int64_t expert = 0; expert < num_local; ++expert)
    sorted.insert(sorted.end(), kSendCounts[2 * expert + 1] - kSendCounts[2 * expert], expert);
  const auto others = static_cast<std::int64_t>(kExpertIds.size() - sorted.size());
  for (std::int64_t i = 0; i < others; ++i)
    sorted.push_back(num_local + i * (kNumExperts - num_local) / others);
  const std::size_t num_tokens = sorted.size() / top_k;
  std::vector<std::int64_t> ids;
  for (std::size_t token = 0; token < num_tokens; ++token) {
    for (int k = 0; k < top_k; ++k) ids.push_back(sorted[k * num_tokens + token]);
  }
  return ids;
}

}  // namespace

ExchangeConfig config(int top_k) {
  return {.max_tokens = static_cast<std::int64_t>(kExpertIds.size()) / top_k,
          .hidden = 1,
          .num_experts = kNumExperts,
          .top_k = top_k,
          .dtype = DataType::kBytes};
}

std::vector<internal::RankInput> inputs(int top_k) {
  std::vector<internal::RankInput> inputs(2);
  for (internal::RankInput& input : inputs) {
    input.num_tokens = static_cast<std::int64_t>(kExpertIds.size()) / top_k;
    for (std::int64_t token = 0; token < input.num_tokens; ++token)
      input.tokens.push_back(static_cast<std::byte>(token));
    input.topk_weights.assign(kExpertIds.size(), 1.0F);
  }
  inputs[0].topk_ids = kExpertIds;
  inputs[1].topk_ids = ids_of_rank_1(top_k);
  return inputs;
}

}  // namespace ferry::test::cann_golden
