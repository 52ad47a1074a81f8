// Placement: from the experts of my tokens to slots. Pure functions; the order of rows (design 4)
// is made here, and row_metadata.cc lists rows in the same order.
//   1. count_entries   my entries -> my row of the count matrix           (every rank)
//   2. sum_columns     the whole matrix -> sums over its rows              (every rank; of a large
//      or sum_slice    matrix each rank a part, for several ranks)
//   3. place           sums -> slots of my tokens, totals                 (every rank, the same
//                      answer without more talk)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ferry/config.h"
#include "routing/route.h"

namespace ferry::internal {

// What placement needs to know of an exchange.
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

// Column sums of the count matrix: over the members before mine at my tp_rank, over all of each
// tp_rank, and over all. An element is less than 2^31 because a rank receives less than 2^31 rows
// (window_layout.cc).
struct ColumnSums {
  std::vector<std::int32_t> before_me, all;
  std::vector<std::vector<std::int32_t>> by_tp_rank;  // with several tp_ranks only
  std::vector<std::int32_t> next;                     // row for the next entry of each column
};

// From the count rows of active.ranks. Cost: R * E.
void sum_columns(const PlacementRules& rules, const ActiveSet& active,
                 std::span<const std::int32_t* const> count_rows, ColumnSums& sums);

// Columns [begin, end) of the sums that all ranks need, with one tp_rank: before[i] is where those
// of the rows before row i are written, null for nowhere.
struct SumSlice {
  std::int64_t begin, end;
  std::span<std::int32_t* const> before;  // [count rows]
  std::int32_t* all;
};
void sum_slice(std::span<const std::int32_t* const> count_rows, const SumSlice& slice) noexcept;

// Computes refs, totals and the receive side of `route` from its columns, the count rows of
// route.active->ranks and their sums. Cost: E + R * L + T * K, L being the experts of this rank;
// kRankMajor: and R * R.
void place(const PlacementRules& rules, std::span<const std::int32_t* const> count_rows,
           ColumnSums& sums, Route& route);

}  // namespace ferry::internal
