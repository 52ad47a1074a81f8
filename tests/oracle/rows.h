// Shared by the oracle's dispatch and combine: the destination of each entry of a token, and the
// rows that a rank receives, in order.
//
// A "member" is an expert-parallel rank that takes part: the i-th active rank, or with tp_size P
// the group of the ranks i * P to i * P + P - 1. Where the contract says "rank" it means members.
#pragma once

#include <cstdint>
#include <vector>

#include "oracle/reference.h"

namespace ferry::internal {

struct ReferenceMember {
  std::vector<int> ranks;     // [tp_size], by tp_rank
  int num_local_experts = 0;  // its shared expert is the last of them
};

// Entry k of a token: of the first K the top-k ids, then one for each shared expert.
struct ReferenceEntry {
  int member = -1;   // that gets it; -1: not sent
  int local = -1;    // which of its experts
  int special = -1;  // the special expert, instead
};

struct ReferenceRouting {
  std::vector<ReferenceMember> members;
  int entries_per_token = 0;  // K + shared experts
  // [R][T * entries_per_token]; empty for a rank outside.
  std::vector<std::vector<ReferenceEntry>> entries;

  const ReferenceEntry& entry(int rank, std::int64_t token, int k) const {
    return entries[rank][token * entries_per_token + k];
  }
};

ReferenceRouting reference_routing(const ExchangeConfig& config,
                                   const std::vector<RankInput>& inputs);

// The experts that top-k ids name, special ones left out; ids beyond are special.
std::int64_t reference_logical_experts(const ExchangeConfig& config);

struct ReferenceRow {
  int member = -1;  // the source; -1: a gap or padding row
  int tp_rank = -1;
  std::int64_t token = -1;
  std::int32_t k = -1;  // kRankMajor: the lowest that is here
};

// Of one rank. Sources are taken in the order: its own tp_rank's, the next tp_rank's (cyclic),
// ...; of a tp_rank, members ascending.
struct ReferenceRows {
  std::vector<ReferenceRow> rows;
  std::vector<std::int64_t> expert_offsets;  // [L + 1]; empty for kRankMajor
  // [tp_size, L, members]: entries that come from each source to each expert.
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> rows_per_source;  // [tp_size, members]: kRankMajor; else empty
};

// kPadded: C in [L, C, H].
std::int64_t reference_expert_capacity(const ExchangeConfig& config, std::size_t num_ranks);

// What the rank at `tp_rank` of `member` receives.
ReferenceRows reference_rows(const ExchangeConfig& config, const ReferenceRouting& routing,
                             int member, int tp_rank);

}  // namespace ferry::internal
