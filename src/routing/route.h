// Route: what a dispatch learned, the inside of a Handle. Slots of my tokens at their owners, and
// the counts of the rows I received. Written once by dispatch (exchange/arguments/top_k_ids.cc,
// then routing/placement.cc), read by dispatch, combine and the public Handle.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "routing/active_set.h"

namespace ferry::internal {

// A row in the receive buffer of a member; member -1: not sent. -2 - s: special expert s, which has
// no row.
struct RowRef {
  std::int32_t member = -1;
  std::int32_t row = 0;

  bool sent() const noexcept { return member >= 0; }
};
inline constexpr std::int32_t kFirstSpecial = -2;

// Of the rows that I received, as in the public Handle.
struct ReceivedRows {
  std::int64_t num_rows = 0;
  std::vector<std::int64_t> tokens_per_expert, aligned_tokens_per_expert, expert_offsets;
  std::vector<std::int64_t> running_counts, running_rows_per_rank;
};

struct Route {
  std::uint64_t exchange_id = 0;
  std::uint64_t number = 0;  // of the dispatch that made it
  std::shared_ptr<const ActiveSet> active = {};
  std::int64_t num_tokens = 0;
  int top_k = 0;
  int num_entries = 0;  // of a token: top_k, then one for each shared expert

  // [T, entries]: column of the expert (ExpertMap), -1 when not sent, kFirstSpecial - s for special
  // expert s.
  std::vector<std::int32_t> columns;
  // Token side, [T, entries], rows at my tensor-parallel rank. Expert layouts: the row of the
  // entry, in its place. kRankMajor: the rows of the token by ascending member, then member -1.
  std::vector<RowRef> refs;
  std::int64_t num_sent = 0;  // how many of the refs are sent
  // With several tp_ranks [tp_size, columns] (kRankMajor: [tp_size, members]): what to add to
  // a row of mine to have its row at that tp_rank.
  std::vector<std::int32_t> shifts;

  // All members: rows that each needs in each section of its buffer (one section; kPadded: one per
  // local expert). The same at all tp_ranks.
  std::vector<std::int64_t> section_rows;  // [members]
  std::int64_t total_rows = 0;             // received by all ranks
  // kRankMajor, as in the public Handle.
  std::vector<std::int64_t> tokens_per_rank;  // [active ranks]
  std::vector<std::int64_t> rows_sent;        // [active ranks, members]

  ReceivedRows received;
};

}  // namespace ferry::internal
