// Placement: from top-k ids to slots. Pure functions; the only place that knows the order of rows
// (design 4).
//   1. count_entries   my ids -> my row of the count matrix          (every rank)
//   2. place           the whole matrix -> slots of my tokens, totals (every rank, the same answer
//   without more talk)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ferry/exchange.h"
#include "routing/expert_map.h"
#include "routing/route.h"

namespace ferry::internal {

// What placement needs to know of an exchange.
struct PlacementRules {
  const ExpertMap& map;
  Layout layout;
  std::int64_t alignment;        // kExpertMajor
  std::int64_t expert_capacity;  // kPadded
  int rank;

  // Elements in one row of the count matrix: entries per expert, then (kRankMajor) rows per rank.
  std::int64_t count_row_size() const noexcept {
    return map.num_experts() + (layout == Layout::kRankMajor ? map.num_ranks() : 0);
  }
};

// The ids of one dispatch after validation: the expert of each (t, k), -1 when not sent.
struct Entries {
  std::span<const std::int32_t> experts;  // [T, K]
  std::int64_t num_tokens;
  int top_k;
};

// Fills counts[count_row_size()]. Cost: T * K, and for kRankMajor T * K^2.
void count_entries(const PlacementRules& rules, const Entries& entries,
                   std::int32_t* counts) noexcept;

// Column sums of the count matrix: over the ranks before mine, and over all. Kept from one dispatch
// to the next. An element is less than 2^31 because a rank receives less than 2^31 rows
// (window_layout.cc).
struct ColumnSums {
  std::vector<std::int32_t> before_me, all;
  std::vector<std::int32_t> next;   // row for the next entry of each expert (or rank)
  std::vector<std::int32_t> first;  // its place in Route::order
};

// Computes refs, totals and the receive side of `route` from all ranks' count rows. Cost: R * E + T
// * K.
void place(const PlacementRules& rules, const Entries& entries,
           std::span<const std::int32_t* const> count_rows, ColumnSums& sums, Route& route);

}  // namespace ferry::internal
