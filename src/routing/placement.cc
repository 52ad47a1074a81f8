#include "routing/placement.h"

#include <algorithm>
#include <numeric>

namespace ferry::internal {

namespace {

// Without a division for the common multiple of 1: this runs once per expert and dispatch.
std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return multiple == 1 ? value : (value + multiple - 1) / multiple * multiple;
}

// True when no earlier entry of the token goes to the same rank.
bool first_of_rank(const ExpertMap& map, const std::int32_t* experts, int k) {
  for (int j = 0; j < k; ++j) {
    if (experts[j] >= 0 && map.owner(experts[j]) == map.owner(experts[k])) return false;
  }
  return true;
}

void sum_columns(const PlacementRules& rules, std::span<const std::int32_t* const> count_rows,
                 ColumnSums& sums) {
  const std::int64_t size = rules.count_row_size();
  sums.all.assign(size, 0);
  for (int rank = 0; rank < rules.map.num_ranks(); ++rank) {
    if (rank == rules.rank) sums.before_me = sums.all;
    const std::int32_t* row = count_rows[rank];
    std::int32_t* all = sums.all.data();
    for (std::int64_t i = 0; i < size; ++i) all[i] += row[i];
  }
}

// The next free row of every expert in its owner's buffer, for my tokens; and the rows each rank
// needs.
void start_experts(const PlacementRules& rules, ColumnSums& sums, Route& route) {
  const ExpertMap& map = rules.map;
  sums.next = sums.before_me;
  route.section_rows.assign(map.num_ranks(), 0);
  for (int rank = 0; rank < map.num_ranks(); ++rank) {
    std::int64_t at = 0, start = 0;
    for (const int expert : map.experts_of(rank)) {
      sums.next[expert] += static_cast<std::int32_t>(start);
      if (rules.layout == Layout::kPadded) {
        start += rules.expert_capacity;
        at = std::max<std::int64_t>(at, sums.all[expert]);
      } else {
        start = at += round_up(sums.all[expert], rules.alignment);
      }
    }
    route.section_rows[rank] = at;
  }
}

// Where the entries for each expert (or rank) start in Route::order, from my own counts.
void start_order(std::span<const std::int32_t> my_counts, ColumnSums& sums, Route& route) {
  sums.first.resize(my_counts.size());
  std::exclusive_scan(my_counts.begin(), my_counts.end(), sums.first.begin(), 0);
  route.order.resize(sums.first.back() + my_counts.back());
}

void place_by_expert(const PlacementRules& rules, const Entries& entries,
                     std::span<const std::int32_t> my_counts, ColumnSums& sums, Route& route) {
  start_experts(rules, sums, route);
  start_order(my_counts, sums, route);
  for (std::size_t i = 0; i < entries.experts.size(); ++i) {
    const std::int32_t expert = entries.experts[i];
    if (expert < 0) continue;
    route.refs[i] = {rules.map.owner(expert), sums.next[expert]++};
    route.order[sums.first[expert]++] = static_cast<std::int32_t>(i);
  }
}

void place_by_rank(const PlacementRules& rules, const Entries& entries,
                   std::span<const std::int32_t> my_counts, ColumnSums& sums, Route& route) {
  const int num_experts = rules.map.num_experts();
  sums.next.assign(sums.before_me.begin() + num_experts, sums.before_me.end());
  route.section_rows.assign(sums.all.begin() + num_experts, sums.all.end());
  route.experts.assign(entries.experts.begin(), entries.experts.end());
  start_order(my_counts, sums, route);
  for (std::int64_t token = 0; token < entries.num_tokens; ++token) {
    const std::int32_t* experts = entries.experts.data() + token * entries.top_k;
    RowRef* refs = route.refs.data() + token * entries.top_k;
    int count = 0;
    for (int k = 0; k < entries.top_k; ++k) {
      if (experts[k] < 0 || !first_of_rank(rules.map, experts, k)) continue;
      const int rank = rules.map.owner(experts[k]);
      refs[count++] = {rank, sums.next[rank]++};
    }
    std::sort(refs, refs + count, [](const RowRef& a, const RowRef& b) { return a.rank < b.rank; });
    for (int j = 0; j < count; ++j) {
      const std::int64_t entry = token * entries.top_k + j;
      route.order[sums.first[refs[j].rank]++] = static_cast<std::int32_t>(entry);
    }
  }
}

// What I receive: counts per local expert and their running sums over sources.
void count_received(const PlacementRules& rules, const ColumnSums& sums,
                    std::span<const std::int32_t* const> count_rows, Route& route) {
  const int num_ranks = rules.map.num_ranks();
  const std::size_t num_local = rules.map.num_local(rules.rank);
  route.tokens_per_expert.reserve(num_local);
  route.aligned_tokens_per_expert.reserve(num_local);
  route.expert_offsets.reserve(num_local + 1);
  route.running_counts.reserve(num_local * num_ranks);
  std::int64_t running = 0;
  for (const int expert : rules.map.experts_of(rules.rank)) {
    route.tokens_per_expert.push_back(sums.all[expert]);
    route.aligned_tokens_per_expert.push_back(round_up(sums.all[expert], rules.alignment));
    for (int rank = 0; rank < num_ranks; ++rank)
      route.running_counts.push_back(running += count_rows[rank][expert]);
  }
  if (rules.layout == Layout::kRankMajor) {
    running = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      running += count_rows[rank][rules.map.num_experts() + rules.rank];
      route.running_rows_per_rank.push_back(running);
    }
    route.num_rows = running;
    return;
  }
  std::int64_t at = 0;
  route.expert_offsets.push_back(at);
  for (const std::int64_t aligned : route.aligned_tokens_per_expert) {
    at += rules.layout == Layout::kPadded ? rules.expert_capacity : aligned;
    route.expert_offsets.push_back(at);
  }
  route.num_rows = at;
}

}  // namespace

void count_entries(const PlacementRules& rules, const Entries& entries,
                   std::int32_t* counts) noexcept {
  std::fill_n(counts, rules.count_row_size(), 0);
  for (const std::int32_t expert : entries.experts) {
    if (expert >= 0) ++counts[expert];
  }
  if (rules.layout != Layout::kRankMajor) return;
  std::int32_t* rows_of_rank = counts + rules.map.num_experts();
  for (std::int64_t token = 0; token < entries.num_tokens; ++token) {
    const std::int32_t* experts = entries.experts.data() + token * entries.top_k;
    for (int k = 0; k < entries.top_k; ++k) {
      if (experts[k] >= 0 && first_of_rank(rules.map, experts, k))
        ++rows_of_rank[rules.map.owner(experts[k])];
    }
  }
}

void place(const PlacementRules& rules, const Entries& entries,
           std::span<const std::int32_t* const> count_rows, ColumnSums& sums, Route& route) {
  sum_columns(rules, count_rows, sums);
  route.num_tokens = entries.num_tokens;
  route.top_k = entries.top_k;
  route.refs.assign(entries.experts.size(), RowRef{});
  // The columns that stand for rows: ranks, or experts.
  const bool by_rank = rules.layout == Layout::kRankMajor;
  const std::int64_t first = by_rank ? rules.map.num_experts() : 0;
  const std::int64_t last = by_rank ? rules.count_row_size() : rules.map.num_experts();
  const std::span<const std::int32_t> my_counts(count_rows[rules.rank] + first, last - first);
  if (by_rank) {
    place_by_rank(rules, entries, my_counts, sums, route);
  } else {
    place_by_expert(rules, entries, my_counts, sums, route);
  }
  route.total_rows =
      std::accumulate(sums.all.begin() + first, sums.all.begin() + last, std::int64_t{0});
  count_received(rules, sums, count_rows, route);
}

}  // namespace ferry::internal
