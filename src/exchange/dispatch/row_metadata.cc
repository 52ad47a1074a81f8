#include "exchange/dispatch/row_metadata.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "routing/placement.h"

namespace ferry::internal {

namespace {

// The weight of entry k of a token. Shared experts have weight 1. `weights`: the token's weights;
// null: the dispatch has none, and the value is not read.
float weight_of(const float* weights, int k, int top_k) {
  return k >= top_k ? 1.0f : weights ? weights[k] : 0.0f;
}

// The parts of a row's metadata in a list. With kRankMajor the source, the weights and the ids of a
// row lie there without gaps.
RowMetadata parts_of(const WindowLayout& layout, std::byte* listed) {
  auto* const source = reinterpret_cast<std::int32_t*>(listed);
  auto* const weights = reinterpret_cast<float*>(source + 3);
  return {source, weights, reinterpret_cast<std::int32_t*>(weights + layout.weights_per_row())};
}

// The metadata arrays of a receive buffer.
RowMetadata parts_in_buffer(const WindowLayout& layout, std::byte* buffer) {
  return {.source = reinterpret_cast<std::int32_t*>(buffer + layout.sources()),
          .weights = reinterpret_cast<float*>(buffer + layout.weights()),
          .ids = reinterpret_cast<std::int32_t*>(buffer + layout.topk_ids())};
}

// Fills `starts` with the index at which the rows for each member begin in this rank's list, and
// `next` with the index of the next row of each column (kRankMajor: of each member).
void start_list(const PlacementRules& rules, const ExpertMap& map, const std::int32_t* counts,
                std::span<std::int32_t> starts, std::vector<std::int32_t>& next) {
  if (!rules.rank_major()) next.resize(map.num_columns());
  std::int32_t rows = 0;
  for (int member = 0; member < map.num_members(); ++member) {
    starts[member] = rows;
    if (rules.rank_major()) {
      rows += counts[map.num_columns() + member];
      continue;
    }
    for (const int column : map.columns_of(member)) {
      next[column] = rows;
      rows += counts[column];
    }
  }
  if (rules.rank_major()) next.assign(starts.begin(), starts.end());
}

void list_by_expert(const Route& route, const float* weights, std::int32_t* next, ListedRow* rows) {
  const std::int32_t* columns = route.columns.data();
  const int num_entries = route.num_entries, top_k = route.top_k;
  std::int32_t entry = 0;
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    for (int k = 0; k < num_entries; ++k, ++entry) {
      const std::int32_t column = columns[entry];
      if (column >= 0) rows[next[column]++] = {entry, weight_of(weights, k, top_k)};
    }
    if (weights) weights += top_k;
  }
}

void fill_member_row(const Route& route, const float* weights, std::int64_t token, int member,
                     const RowMetadata& to) {
  const ExpertMap& map = route.active->map;
  const std::int32_t* columns = route.columns.data() + token * route.num_entries;
  to.source[0] = route.active->member;
  to.source[1] = static_cast<std::int32_t>(token);
  to.source[2] = -1;
  for (int j = 0; j < route.num_entries; ++j) {
    const bool local = columns[j] >= 0 && map.owner(columns[j]) == member;
    if (local && to.source[2] < 0) to.source[2] = j;
    if (j >= route.top_k) continue;
    to.ids[j] = local ? map.local(columns[j]) : -1;
    if (weights) to.weights[j] = local ? weights[j] : 0.0f;
  }
}

void list_by_member(const WindowLayout& layout, const Route& route, const float* weights,
                    std::int32_t* next, std::byte* rows) {
  const ExpertMap& map = route.active->map;
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    const std::int32_t* columns = route.columns.data() + token * route.num_entries;
    for (int k = 0; k < route.num_entries; ++k) {
      if (columns[k] < 0 || !first_of_member(map, columns, k)) continue;
      const int member = map.owner(columns[k]);
      const std::size_t row = next[member]++;
      fill_member_row(route, weights, token, member,
                      parts_of(layout, rows + row * layout.listed_row_bytes()));
    }
    if (weights) weights += route.top_k;
  }
}

// Writes the metadata of `rows`, which `member` sends, without gaps to `source` and `weight`.
void put_rows(std::span<const ListedRow> rows, std::int32_t member, std::int32_t num_entries,
              std::int32_t* source, float* weight) {
  for (const ListedRow& row : rows) {
    const std::int32_t token = row.entry / num_entries;
    *source++ = member;
    *source++ = token;
    *source++ = row.entry - token * num_entries;
    *weight++ = row.weight;
  }
}

// [tp_ranks from this rank's on, members] The address of each source's list of the rows that it
// sends to this rank; null: the source is of another node, or dispatches no tokens.
std::vector<std::byte*> find_lists(const ExchangeParts& exchange, std::uint64_t number,
                                   const ActiveSet& active) {
  const WindowLayout& layout = exchange.setup->layout;
  std::vector<std::byte*> lists;
  for (int i = 0; i < active.tp_size; ++i) {
    for (int member = 0; member < active.num_members; ++member) {
      const int rank = active.ranks[active.index(member, active.tp_rank_from_mine(i))];
      const bool listed = exchange.here(rank) && exchange.setup->places->sends(rank);
      lists.push_back(listed ? exchange.view.row_list(rank, number) : nullptr);
      if (!lists.back()) continue;
      FERRY_CHECK(exchange.record(rank, number).number, ==, number);
      const std::size_t first = reinterpret_cast<std::int32_t*>(lists.back())[active.member];
      lists.back() += layout.listed_rows() + first * layout.listed_row_bytes();
    }
  }
  return lists;
}

// Copies metadata into a receive buffer whose rows are ordered by local expert, then by tp_rank
// counted from this rank's, then by source.
void take_by_expert(const Route& route, std::vector<std::byte*>& lists, const RowMetadata& to) {
  const std::vector<std::int64_t>& running = route.received.running_counts;
  const std::int64_t members = route.active->num_members;
  const std::int64_t block = std::ssize(running) / route.active->tp_size;
  FERRY_CHECK(block * route.active->tp_size, ==, std::ssize(running));
  FERRY_CHECK(block % members, ==, 0);
  for (std::int64_t column = 0; column * members < block; ++column) {
    std::int64_t row = route.received.expert_offsets[column];
    std::byte** list = lists.data();
    for (std::int64_t at = column * members; at < std::ssize(running); at += block) {
      std::int64_t before = column == 0 ? 0 : running[at - 1];
      for (std::int32_t member = 0; member < members; ++member, ++list) {
        const std::size_t count = running[at + member] - before;
        before += count;
        row += count;
        if (!*list) continue;
        put_rows({reinterpret_cast<const ListedRow*>(*list), count}, member, route.num_entries,
                 to.source + 3 * (row - count), to.weights + row - count);
        *list += count * sizeof(ListedRow);
      }
    }
  }
}

// The same for kRankMajor, where rows are ordered by tp_rank counted from this rank's, then by
// source.
void take_by_member(const WindowLayout& layout, const Route& route,
                    const std::vector<std::byte*>& lists, RowMetadata to) {
  const std::size_t weights = layout.weights_per_row(), ids = layout.ids_per_row();
  const std::vector<std::int64_t>& running = route.received.running_rows_per_rank;
  FERRY_CHECK(running.size(), ==, lists.size());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const bool first = i % route.active->num_members == 0;
    const std::int64_t count = running[i] - (first ? 0 : running[i - 1]);
    for (std::int64_t row = 0; lists[i] && row < count; ++row) {
      const RowMetadata from = parts_of(layout, lists[i] + row * layout.listed_row_bytes());
      std::copy_n(from.source, 3, to.source + 3 * row);
      std::copy_n(from.weights, weights, to.weights + weights * row);
      std::copy_n(from.ids, ids, to.ids + ids * row);
    }
    to.source += 3 * count;
    to.weights += weights * count;
    to.ids += ids * count;
  }
}

}  // namespace

void fill_metadata(const Setup& setup, const Route& route, const DispatchArgs& args,
                   std::int64_t entry, const RowMetadata& to) {
  const auto token = static_cast<std::int32_t>(entry) / route.num_entries;
  const float* weights =
      args.topk_weights ? args.topk_weights + std::int64_t{token} * route.top_k : nullptr;
  if (setup.rank_major())
    return fill_member_row(route, weights, token, route.refs[entry].member, to);
  const int k = static_cast<std::int32_t>(entry) - token * route.num_entries;
  to.source[0] = route.active->member;
  to.source[1] = token;
  to.source[2] = k;
  to.weights[0] = weight_of(weights, k, route.top_k);
}

void list_rows(ExchangeParts& exchange, std::uint64_t number, const Route& route,
               const DispatchArgs& args) {
  const Setup& setup = *exchange.setup;
  const ExpertMap& map = route.active->map;
  std::byte* const list = exchange.view.row_list(setup.rank, number);
  std::byte* const rows = list + setup.layout.listed_rows();
  FERRY_CHECK(map.num_members(), ==, route.active->num_members);
  std::vector<std::int32_t>& next = exchange.column_sums.next;
  start_list(setup.rules(), map, exchange.view.count_row(setup.rank, number),
             {reinterpret_cast<std::int32_t*>(list), static_cast<std::size_t>(map.num_members())},
             next);
  if (setup.rank_major()) {
    list_by_member(setup.layout, route, args.topk_weights, next.data(), rows);
  } else {
    list_by_expert(route, args.topk_weights, next.data(), reinterpret_cast<ListedRow*>(rows));
  }
}

void take_metadata(const ExchangeParts& exchange, std::uint64_t number, const Route& route,
                   std::byte* buffer) {
  const WindowLayout& layout = exchange.setup->layout;
  std::vector<std::byte*> lists = find_lists(exchange, number, *route.active);
  const RowMetadata to = parts_in_buffer(layout, buffer);
  if (exchange.setup->rank_major()) {
    take_by_member(layout, route, lists, to);
  } else {
    take_by_expert(route, lists, to);
  }
}

}  // namespace ferry::internal
