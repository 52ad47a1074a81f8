// Route: what a dispatch learned, the inside of a Handle. Slots of my tokens at their owners, and
// the counts of the rows I received. Written once by dispatch (routing/placement.cc), read by
// dispatch, combine and the public Handle.
#pragma once

#include <cstdint>
#include <vector>

#include "ferry/types.h"

namespace ferry::internal {

// A row in the receive buffer of a rank; rank -1: not sent.
struct RowRef {
  std::int32_t rank = -1;
  std::int32_t row = 0;
};

struct Route {
  std::uint64_t exchange_id = 0;
  std::uint64_t number = 0;  // of the dispatch that made it
  std::int64_t num_tokens = 0;
  int top_k = 0;

  // Token side, [T, K]. Expert layouts: the row of (t, k), at k. kRankMajor: the rows of token t by
  // ascending rank, then rank -1.
  std::vector<RowRef> refs;
  // Indices of the refs that are sent, in the order of their rows: by expert, or by rank.
  std::vector<std::int32_t> order;
  // kRankMajor: [T, K], expert of (t, k) or -1 when not sent; else empty.
  std::vector<std::int32_t> experts;

  // All ranks: rows that each rank needs in each section of its buffer (one section; kPadded: one
  // per local expert).
  std::vector<std::int64_t> section_rows;  // [R]
  std::int64_t total_rows = 0;             // sent by all ranks to all ranks

  // Expert side, as in the public Handle.
  std::int64_t num_rows = 0;
  std::vector<std::int64_t> tokens_per_expert, aligned_tokens_per_expert, expert_offsets;
  std::vector<std::int64_t> running_counts, running_rows_per_rank;
};

}  // namespace ferry::internal
