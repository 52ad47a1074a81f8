#include "routing/placement.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/round_up.h"

namespace ferry::internal {

namespace {

void add(const std::vector<std::int32_t>& from, std::vector<std::int32_t>& to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

// Checks that the arguments of place() are of this active set and these tokens.
void check_placed_from(const PlacementRules& rules, std::span<const std::int32_t* const> count_rows,
                       const ColumnSums& sums, const Route& route) {
  const ActiveSet& active = *route.active;
  FERRY_CHECK(active.member, >=, 0);
  FERRY_CHECK(count_rows.size(), ==, active.ranks.size());
  FERRY_CHECK(std::ssize(sums.all), ==, rules.count_row_size(active.map));
  FERRY_CHECK(sums.before_me.size(), ==, sums.all.size());
  FERRY_CHECK(sums.by_tp_rank.size(), ==,
              active.tp_size > 1 ? static_cast<std::size_t>(active.tp_size) : 0U);
  FERRY_CHECK(std::ssize(route.columns), ==, route.num_tokens * route.num_entries);
  FERRY_CHECK(route.num_sent, ==, 0);
}

// Finds the first row for the tokens of this rank in the buffer of each column's owner, and the
// rows that each member needs.
void start_columns(const PlacementRules& rules, ColumnSums& sums, Route& route) {
  const ExpertMap& map = route.active->map;
  const bool padded = rules.layout == Layout::kPadded;
  const std::int32_t *all = sums.all.data(), *before_me = sums.before_me.data();
  sums.next.resize(map.num_columns());
  std::int32_t* next = sums.next.data();
  route.section_rows.assign(map.num_members(), 0);
  for (int member = 0; member < map.num_members(); ++member) {
    std::int64_t rows = 0, start = 0;
    for (const int column : map.columns_of(member)) {
      next[column] = before_me[column] + static_cast<std::int32_t>(start);
      if (padded) {
        start += rules.expert_capacity;
        rows = std::max<std::int64_t>(rows, all[column]);
      } else {
        start = rows += round_up(all[column], rules.alignment);
      }
    }
    route.section_rows[member] = rows;
  }
}

void place_by_expert(const PlacementRules& rules, ColumnSums& sums, Route& route) {
  const ExpertMap& map = route.active->map;
  start_columns(rules, sums, route);
  const std::size_t count = route.columns.size();
  const std::int32_t* columns = route.columns.data();
  RowRef* refs = route.refs.data();
  std::int32_t* next = sums.next.data();
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t column = columns[i];
    if (column < 0) {
      refs[i].member = column;
      continue;
    }
    refs[i] = {map.owner(column), next[column]++};
    ++route.num_sent;
  }
}

void place_by_member(ColumnSums& sums, Route& route) {
  const ExpertMap& map = route.active->map;
  const int num_columns = map.num_columns();
  sums.next.assign(sums.before_me.begin() + num_columns, sums.before_me.end());
  route.section_rows.assign(sums.all.begin() + num_columns, sums.all.end());
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    const std::int32_t* columns = route.columns.data() + token * route.num_entries;
    RowRef* refs = route.refs.data() + token * route.num_entries;
    int count = 0;
    for (int k = 0; k < route.num_entries; ++k) {
      if (columns[k] < 0 || !first_of_member(map, columns, k)) continue;
      const int member = map.owner(columns[k]);
      refs[count++] = {member, sums.next[member]++};
    }
    std::sort(refs, refs + count,
              [](const RowRef& a, const RowRef& b) { return a.member < b.member; });
    route.num_sent += count;
  }
}

// The receive buffer of a rank of tp_rank t holds the rows from the sources of tp_rank t first,
// then those of t + 1, and so on (cyclic). Appends to route.shifts, for each t and each element in
// [first, last), the number of rows that lie before those from this rank's tp_rank.
void shift_to_tp_ranks(std::int64_t first, std::int64_t last, const ColumnSums& sums,
                       Route& route) {
  const int tp_size = route.active->tp_size;
  for (int tp_rank = 0; tp_rank < tp_size; ++tp_rank) {
    std::vector<std::int32_t> shift(last - first, 0);
    for (int p = tp_rank; p != route.active->tp_rank; p = (p + 1) % tp_size) {
      for (std::int64_t i = first; i < last; ++i) shift[i - first] += sums.by_tp_rank[p][i];
    }
    route.shifts.insert(route.shifts.end(), shift.begin(), shift.end());
  }
}

// Appends the running sums over (column, source) of the count rows of one tp_rank, which are
// `sources`.
void run_counts(std::span<const std::int32_t> columns, std::span<const std::int32_t* const> sources,
                std::vector<std::int64_t>& running) {
  const std::size_t first = running.size();
  running.resize(first + columns.size() * sources.size());
  std::int64_t* to = running.data() + first;
  std::int64_t sum = 0;
  for (const int column : columns) {
    for (const std::int32_t* counts : sources) *to++ = sum += counts ? counts[column] : 0;
  }
}

// Counts the rows of each local expert and, in expert layouts, finds the first row of each.
void count_rows_of_experts(const PlacementRules& rules, std::span<const std::int32_t> columns,
                           const ColumnSums& sums, ReceivedRows& received) {
  const std::size_t count = columns.size();
  received.tokens_per_expert.resize(count);
  received.aligned_tokens_per_expert.resize(count);
  received.expert_offsets.resize(rules.rank_major() ? 0 : count + 1);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t rows = sums.all[columns[i]];
    const std::int64_t aligned = round_up(rows, rules.alignment);
    received.tokens_per_expert[i] = rows;
    received.aligned_tokens_per_expert[i] = aligned;
    if (rules.rank_major()) continue;
    at += rules.layout == Layout::kPadded ? rules.expert_capacity : aligned;
    received.expert_offsets[i + 1] = at;
  }
  received.num_rows = at;
}

// The rows that this rank receives add up to the sums that all ranks know.
void check_received(const PlacementRules& rules, const ColumnSums& sums, const ActiveSet& active,
                    const ReceivedRows& received) {
  const std::size_t num_local = active.map.num_local(active.member);
  FERRY_CHECK(received.tokens_per_expert.size(), ==, num_local);
  FERRY_CHECK(received.running_counts.size(), ==, num_local * active.ranks.size());
  if (active.tp_size == 1 && num_local > 0)
    FERRY_CHECK(received.running_counts.back(), ==,
                std::accumulate(received.tokens_per_expert.begin(),
                                received.tokens_per_expert.end(), std::int64_t{0}));
  if (rules.rank_major()) {
    FERRY_CHECK(received.num_rows, ==, sums.all[active.map.num_columns() + active.member]);
    FERRY_CHECK(received.running_rows_per_rank.size(), ==, active.ranks.size());
  } else {
    FERRY_CHECK(received.num_rows, ==, received.expert_offsets.back());
    FERRY_CHECK(received.running_rows_per_rank.size(), ==, 0U);
  }
}

// Counts the rows that this rank receives for each local expert, and their running sums over
// sources.
void count_received(const PlacementRules& rules, const ColumnSums& sums,
                    std::span<const std::int32_t* const> count_rows, Route& route) {
  const ActiveSet& active = *route.active;
  FERRY_CHECK(active.member, >=, 0);
  const std::span<const std::int32_t> mine = active.map.columns_of(active.member);
  const std::int32_t my_rows = active.map.num_columns() + active.member;
  ReceivedRows& received = route.received;
  count_rows_of_experts(rules, mine, sums, received);
  received.running_counts.reserve(mine.size() * count_rows.size());
  for (int i = 0; i < active.tp_size; ++i) {
    const int tp_rank = active.tp_rank_from_mine(i);
    const auto sources = count_rows.subspan(active.index(0, tp_rank), active.num_members);
    run_counts(mine, sources, received.running_counts);
    if (!rules.rank_major()) continue;
    run_counts({&my_rows, 1}, sources, received.running_rows_per_rank);
    received.num_rows += received.running_rows_per_rank.back();
  }
  check_received(rules, sums, active, received);
}

}  // namespace

bool first_of_member(const ExpertMap& map, const std::int32_t* columns, int k) noexcept {
  for (int j = 0; j < k; ++j) {
    if (columns[j] >= 0 && map.owner(columns[j]) == map.owner(columns[k])) return false;
  }
  return true;
}

void count_entries(const PlacementRules& rules, const Route& route, std::int32_t* counts) noexcept {
  const ExpertMap& map = route.active->map;
  std::fill_n(counts, rules.count_row_size(map), 0);
  for (const std::int32_t column : route.columns) {
    if (column >= 0) ++counts[column];
  }
  if (!rules.rank_major()) return;
  std::int32_t* rows_of_member = counts + map.num_columns();
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    const std::int32_t* columns = route.columns.data() + token * route.num_entries;
    for (int k = 0; k < route.num_entries; ++k) {
      if (columns[k] >= 0 && first_of_member(map, columns, k))
        ++rows_of_member[map.owner(columns[k])];
    }
  }
}

void sum_columns(const PlacementRules& rules, const ActiveSet& active,
                 std::span<const std::int32_t* const> count_rows, ColumnSums& sums) {
  FERRY_CHECK(count_rows.size(), ==, active.ranks.size());
  const std::int64_t size = rules.count_row_size(active.map);
  sums.all.assign(size, 0);
  sums.by_tp_rank.clear();
  for (int tp_rank = 0; tp_rank < active.tp_size; ++tp_rank) {
    if (tp_rank > 0) sums.by_tp_rank.push_back(std::move(sums.all)), sums.all.assign(size, 0);
    for (int member = 0; member < active.num_members; ++member) {
      if (active.index(member, tp_rank) == active.my_index()) sums.before_me = sums.all;
      const std::int32_t* row = count_rows[active.index(member, tp_rank)];
      if (row == nullptr) continue;
      std::int32_t* all = sums.all.data();
      for (std::int64_t i = 0; i < size; ++i) all[i] += row[i];
    }
  }
  if (sums.by_tp_rank.empty()) return;
  sums.by_tp_rank.push_back(sums.all);
  for (int tp_rank = 0; tp_rank + 1 < active.tp_size; ++tp_rank)
    add(sums.by_tp_rank[tp_rank], sums.all);
}

void sum_slice(std::span<const std::int32_t* const> count_rows, const SumSlice& slice) noexcept {
  std::int32_t* const all = slice.all;
  std::fill(all + slice.begin, all + slice.end, 0);
  for (std::size_t i = 0; i < count_rows.size(); ++i) {
    std::int32_t* const before = slice.before[i];
    if (before) std::copy(all + slice.begin, all + slice.end, before + slice.begin);
    const std::int32_t* row = count_rows[i];
    for (std::int64_t j = slice.begin; row && j < slice.end; ++j) all[j] += row[j];
  }
}

void place(const PlacementRules& rules, std::span<const std::int32_t* const> count_rows,
           ColumnSums& sums, Route& route) {
  const ActiveSet& active = *route.active;
  check_placed_from(rules, count_rows, sums, route);
  route.refs.assign(route.columns.size(), RowRef{});
  // The columns that count rows: those of the experts, or of the members.
  const std::int64_t first = rules.rank_major() ? active.map.num_columns() : 0;
  const std::int64_t last =
      rules.rank_major() ? rules.count_row_size(active.map) : active.map.num_columns();
  if (rules.rank_major()) {
    for (const std::int32_t* counts : count_rows) {
      if (counts == nullptr) {
        route.rows_sent.resize(route.rows_sent.size() + last - first);
      } else {
        route.rows_sent.insert(route.rows_sent.end(), counts + first, counts + last);
      }
    }
    place_by_member(sums, route);
  } else {
    place_by_expert(rules, sums, route);
  }
  // Each entry that this rank counted has a row, and no other entry has one.
  const std::int32_t* const counted = count_rows[active.my_index()];
  FERRY_CHECK(route.num_sent, ==,
              counted ? std::accumulate(counted + first, counted + last, std::int64_t{0}) : 0);
  if (active.tp_size > 1) shift_to_tp_ranks(first, last, sums, route);
  route.total_rows = active.tp_size * std::accumulate(sums.all.begin() + first,
                                                      sums.all.begin() + last, std::int64_t{0});
  count_received(rules, sums, count_rows, route);
}

}  // namespace ferry::internal
