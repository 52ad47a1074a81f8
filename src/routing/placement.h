// Placement: from the experts of the tokens of this rank to slots in receive buffers. Pure
// functions. They define the order of rows; exchange/dispatch/row_metadata.cc lists rows in the
// same order.
//   1. count_entries   entries of this rank -> its row of the count matrix
//   2. sum_columns     the whole matrix -> sums over its rows
//      or sum_slice    the same for some columns: the ranks of a node share a large matrix
//   3. place           sums -> slots of the tokens of this rank, and totals
// Every rank calls place() on an equal matrix, so that the totals of all ranks are equal without
// another message.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ferry/config.h"
#include "routing/route.h"

namespace ferry::internal {

// The settings of an exchange that placement depends on.
struct PlacementRules {
  Layout layout;
  std::int64_t alignment;        // kExpertMajor
  std::int64_t expert_capacity;  // kPadded

  bool rank_major() const noexcept { return layout == Layout::kRankMajor; }
  // Elements in one row of the count matrix: entries per column, then (kRankMajor) rows per member.
  std::int64_t count_row_size(const ExpertMap& map) const noexcept {
    return map.num_columns() + (rank_major() ? map.num_members() : 0);
  }
};

// Fills counts[count_row_size()] from route.columns. Cost: T * K, and for kRankMajor T * K^2.
void count_entries(const PlacementRules& rules, const Route& route, std::int32_t* counts) noexcept;

// True when no earlier entry of the token goes to the same member; `columns` are those of the
// token.
bool first_of_member(const ExpertMap& map, const std::int32_t* columns, int k) noexcept;

// Column sums of the count matrix. `before_me` sums the rows of this rank's tp_rank whose member is
// lower than this rank's; `by_tp_rank` sums the rows of each tp_rank; `all` sums all rows. An
// element is less than 2^31 because a rank receives less than 2^31 rows (window_layout.cc).
struct ColumnSums {
  std::vector<std::int32_t> before_me, all;
  std::vector<std::vector<std::int32_t>> by_tp_rank;  // empty where tp_size is 1
  std::vector<std::int32_t> next;  // [columns], kRankMajor [members]: the row for the next entry
};

// Sums the count rows of active.ranks. Here and below, a null row is one of zeros: that of a rank
// that dispatches no tokens. Cost: E for each row that is not null.
void sum_columns(const PlacementRules& rules, const ActiveSet& active,
                 std::span<const std::int32_t* const> count_rows, ColumnSums& sums);

// Columns [begin, end) of the sums that all ranks need, where tp_size is 1. The sums of the rows
// before row i go to before[i]; null: they go nowhere. The sums of all rows go to `all`.
struct SumSlice {
  std::int64_t begin, end;
  std::span<std::int32_t* const> before;  // [count rows]
  std::int32_t* all;
};
void sum_slice(std::span<const std::int32_t* const> count_rows, const SumSlice& slice) noexcept;

// Computes refs, totals and the receive side of `route` from its columns, the count rows of
// route.active->ranks and their sums. The cost is E + R * L + T * K, where L is the number of
// experts of this rank; kRankMajor adds R * R + T * K^2.
void place(const PlacementRules& rules, std::span<const std::int32_t* const> count_rows,
           ColumnSums& sums, Route& route);

}  // namespace ferry::internal
