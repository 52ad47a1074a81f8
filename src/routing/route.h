// Route: the inside of a Handle. The slots of the tokens of this rank in the receive buffers of
// their owners, and the counts of the rows that this rank received. One dispatch writes a route;
// after that it does not change.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "routing/active_set.h"

namespace ferry::internal {

// A row in the receive buffer of a member. Member -1: the entry is not sent. Member
// kFirstSpecial - s: the entry goes to special expert s, which has no row.
struct RowRef {
  std::int32_t member = -1;
  std::int32_t row = 0;

  bool sent() const noexcept { return member >= 0; }
};
inline constexpr std::int32_t kFirstSpecial = -2;

// Counts of the rows that this rank received, as in the public Handle.
struct ReceivedRows {
  std::int64_t num_rows = 0;
  std::vector<std::int64_t> tokens_per_expert, aligned_tokens_per_expert, expert_offsets;
  std::vector<std::int64_t> running_counts, running_rows_per_rank;
};

struct Route {
  std::uint64_t exchange_id = 0;
  std::uint64_t number = 0;  // number of the dispatch that wrote this route
  std::shared_ptr<const ActiveSet> active = {};
  std::int64_t num_tokens = 0;
  int top_k = 0;
  int num_entries = 0;  // entries of a token: top_k, then one for each shared expert

  // [T, entries]: the column of the expert (ExpertMap); -1: not sent; kFirstSpecial - s: special
  // expert s.
  std::vector<std::int32_t> columns;
  // [T, entries]: rows at the owner that has the tp_rank of this rank. Expert layouts: refs[i] is
  // the row of entry i. kRankMajor: the rows of the token by ascending member, then member -1.
  std::vector<RowRef> refs;
  std::int64_t num_sent = 0;  // how many of the refs are sent
  // Where tp_size > 1: [tp_size, columns], for kRankMajor [tp_size, members]. The sum of a row of
  // `refs` and its shift is the row at the owner of that tp_rank.
  std::vector<std::int32_t> shifts;

  // [members]: rows that each member needs in each section of its buffer. kPadded has one section
  // for each local expert, the other layouts have one. The same at all tp_ranks.
  std::vector<std::int64_t> section_rows;
  std::int64_t total_rows = 0;  // received by all ranks
  // kRankMajor, as in the public Handle.
  std::vector<std::int64_t> tokens_per_rank;  // [active ranks]
  std::vector<std::int64_t> rows_sent;        // [active ranks, members]

  ReceivedRows received;

  // An empty route that keeps the memory of its vectors.
  void clear() noexcept;
};

}  // namespace ferry::internal
