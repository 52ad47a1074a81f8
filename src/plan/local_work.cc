#include "plan/local_work.h"

#include <algorithm>

namespace ferry {

double Machine::Copying::ranks_us(double num_ranks, int processors) const {
  const double waiting = processors > 0 ? std::max(num_ranks - processors, 0.0) : 0;
  return num_ranks * rank_us + waiting * waiting_us;
}

double Machine::Copying::bytes_us(double bytes, double part_beyond) const {
  return bytes * ((1 - part_beyond) / gb_s[0] + part_beyond / gb_s[1]) / 1e3;
}

double Machine::Copying::rows_us(double tokens, double bytes, double part_beyond) const {
  return tokens * token_ns / 1e3 + bytes_us(bytes, part_beyond);
}

double Machine::Caches::part_beyond(double bytes, double num_ranks) const {
  const double over_mb = bytes / 1e6 + num_ranks * rank_mb - mb[0], width_mb = mb[1] - mb[0];
  if (over_mb <= 0) return 0;
  return over_mb < width_mb ? over_mb / width_mb : 1;
}

}  // namespace ferry

namespace ferry::internal {

int LocalWork::reorder_tokens(int rank, std::int64_t ranks, MergedTasks& tasks,
                              std::vector<int> after) {
  std::vector<Use> uses = resources_.reordering(rank);
  if (uses.empty()) return -1;
  const double bytes = static_cast<double>(input_.traffic.tokens) * input_.traffic.row_bytes;
  return tasks.add(
      {.what = "reorder", .bytes = bytes, .uses = std::move(uses), .after = std::move(after)},
      ranks);
}

int LocalWork::reorder_rows(int rank, std::int64_t ranks, MergedTasks& tasks,
                            std::vector<int> after) {
  std::vector<Use> uses = resources_.reordering(rank);
  if (uses.empty()) return -1;
  const double rows = input_.routing.demand().window_rows(rank, input_.traffic.row_per_rank) *
                      input_.traffic.num_sources();
  const double bytes = rows * static_cast<double>(input_.traffic.tokens) * input_.traffic.row_bytes;
  return tasks.add({.what = "reorder of rows",
                    .bytes = bytes,
                    .uses = std::move(uses),
                    .after = std::move(after)},
                   ranks);
}

void LocalWork::copy_rows(MergedTasks& dispatch, MergedTasks& combine) {
  const Machine::Host& host = input_.graph.machine().host;
  if (host.dispatch.gb_s[0] <= 0 && host.combine.gb_s[0] <= 0) return;
  const Traffic& traffic = input_.traffic;
  const double all_tokens = static_cast<double>(traffic.tokens) * traffic.num_sources();
  const Demand demand = input_.routing.demand();
  for (const Node& node : nodes_of(input_.graph, input_.classes)) {
    double rows = 0, tokens = 0;
    for (const int rank : node.ranks) {
      rows += all_tokens * demand.window_rows(rank, traffic.row_per_rank);
      tokens += all_tokens * demand.window_rows(rank, true);
    }
    copy_rows_of(dispatch, host.dispatch, node, {tokens, rows * traffic.row_bytes});
    copy_rows_of(combine, host.combine, node, {tokens, rows * traffic.output_bytes});
  }
}

void LocalWork::copy_rows_of(MergedTasks& tasks, const Machine::Copying& cost, const Node& node,
                             const RowSet& set) {
  if (cost.gb_s[0] <= 0 || set.bytes <= 0) return;
  const auto num_ranks = static_cast<double>(node.ranks.size());
  const Machine::Host& host = input_.graph.machine().host;
  const double beyond = host.caches.part_beyond(set.bytes, num_ranks);
  const double us = cost.rows_us(set.tokens, set.bytes, beyond);
  tasks.add({.what = "copies",
             .bytes = set.bytes,
             .latency_us = cost.ranks_us(num_ranks, host.processors),
             .uses = {resources_.host(node.ranks.front(), us / set.bytes)}},
            node.count);
}

}  // namespace ferry::internal
