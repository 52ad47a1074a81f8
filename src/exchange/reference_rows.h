// What the two halves of the oracle share: owners of experts, and the rows that a rank receives, in
// order. Used by reference.cc and reference_combine.cc only.
#pragma once

#include <cstdint>
#include <vector>

#include "exchange/reference.h"

namespace ferry::internal {

struct ReferenceExpert {
  int rank = 0;
  int local = 0;  // index among that rank's experts, by ascending expert id
};

struct ReferenceRow {
  std::int32_t source = -1;  // -1: a gap or padding row
  std::int64_t token = -1;
  std::int32_t k = -1;  // kRankMajor: the lowest k whose expert is here
};

struct ReferenceRows {
  int rank = 0;
  int num_local_experts = 0;
  std::vector<ReferenceRow> rows;
  std::vector<std::int64_t> expert_offsets;  // [L + 1]; empty for kRankMajor
};

// [E]: where each expert lives.
std::vector<ReferenceExpert> reference_experts(const ExchangeConfig& config, int num_ranks);

// The expert that entry (token, k) goes to, or -1 when it is not sent (id -1, or masked).
std::int64_t reference_sent_expert(const ExchangeConfig& config, const RankInput& input,
                                   std::int64_t token, int k);

// The rows that `rank` receives.
ReferenceRows reference_rows(const ExchangeConfig& config, const std::vector<RankInput>& inputs,
                             int rank);

}  // namespace ferry::internal
