#include "exchange/parts/place_rows.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/round_up.h"
#include "kernels/kernels.h"
#include "routing/placement.h"

namespace ferry::internal {

namespace {

constexpr std::int64_t kColumnsPerLine = kLineBytes / sizeof(std::int32_t);

std::span<const std::int32_t* const> find_count_rows(ExchangeParts& exchange, std::uint64_t number,
                                                     const ActiveSet& active) {
  std::vector<const std::int32_t*>& rows = exchange.count_rows;
  rows.clear();
  for (const int peer : active.ranks) {
    const bool sends = exchange.setup->places->sends(peer);
    rows.push_back(sends ? exchange.view.count_row(peer, number) : nullptr);
  }
  return rows;
}

// The active ranks of this node, in the order of the active set.
std::vector<int> active_here(const ExchangeParts& exchange, const ActiveSet& active) {
  std::vector<int> ranks;
  for (const int rank : active.ranks) {
    if (exchange.here(rank)) ranks.push_back(rank);
  }
  return ranks;
}

// `ranks`: the active ranks of this node. Each of them sums a slice of the columns for all of them.
// A slice is a number of whole cache lines, so that each line has one writer. If there are fewer
// lines than ranks, the last ranks have no slice. The totals lie in the memory of the first rank,
// so that two sets of ranks without a common rank write to different memory.
Status sum_together(ExchangeParts& exchange, const Issued& issued, const std::vector<int>& ranks,
                    std::vector<std::int64_t>* wait_ns) {
  const WindowView& view = exchange.view;
  const ActiveSet& active = *issued.active;
  const int self = exchange.setup->rank;
  const std::int64_t size = exchange.setup->rules().count_row_size(active.map);
  const std::int64_t share = (size + std::ssize(ranks) - 1) / std::ssize(ranks);
  const std::int64_t slice = round_up(share, kColumnsPerLine);
  std::vector<bool> sums(view.num_ranks());  // the ranks that have a slice
  for (std::int64_t i = 0; i * slice < size; ++i) sums[ranks[i]] = true;
  FERRY_CHECK(std::ranges::count(ranks, self), ==, 1);
  std::int32_t* const all = view.total_sums(ranks[0]);
  if (sums[self]) {
    const std::int64_t begin = slice * (std::ranges::find(ranks, self) - ranks.begin());
    std::vector<std::int32_t*> before;  // [active ranks]
    for (const int rank : active.ranks)
      before.push_back(view.here(rank) ? view.sums_before(rank) : nullptr);
    sum_slice(find_count_rows(exchange, issued.number, active),
              {.begin = begin, .end = std::min(begin + slice, size), .before = before, .all = all});
    exchange.protocol.publish(issued.number, Stage::kSummed);
  }
  Status status = exchange.protocol.await(issued, "count sums", Stage::kSummed,
                                          {.wait_ns = wait_ns, .only = &sums});
  if (!status.ok()) return status;
  const std::int32_t* const before_me = view.sums_before(self);
  exchange.column_sums.all.assign(all, all + size);
  exchange.column_sums.before_me.assign(before_me, before_me + size);
  return {};
}

}  // namespace

void place_rows_alone(ExchangeParts& exchange, std::uint64_t number, Route& route) {
  const auto count_rows = find_count_rows(exchange, number, *route.active);
  const PlacementRules rules = exchange.setup->rules();
  FERRY_CHECK(count_rows.size(), ==, route.active->ranks.size());
  sum_columns(rules, *route.active, count_rows, exchange.column_sums);
  place(rules, count_rows, exchange.column_sums, route);
}

Status place_rows(ExchangeParts& exchange, const Issued& issued, Route& route,
                  std::vector<std::int64_t>* wait_ns) {
  const ActiveSet& active = *issued.active;
  std::vector<int> ranks;
  if (shares_sums(exchange.setup->config, active.map)) ranks = active_here(exchange, active);
  if (ranks.size() < 2) {
    place_rows_alone(exchange, issued.number, route);
    return {};
  }
  Status summed = sum_together(exchange, issued, ranks, wait_ns);
  if (!summed.ok()) return summed;
  place(exchange.setup->rules(), find_count_rows(exchange, issued.number, active),
        exchange.column_sums, route);
  return {};
}

}  // namespace ferry::internal
