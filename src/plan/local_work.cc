#include "plan/local_work.h"

namespace ferry::internal {

// A rank's tokens brought into order, one row each.
int LocalWork::reorder_tokens(int rank, std::int64_t ranks, MergedTasks& tasks,
                              std::vector<int> after) {
  std::vector<Use> uses = resources_.reordering(rank);
  if (uses.empty()) return -1;
  const double bytes = static_cast<double>(input_.traffic.tokens) * input_.traffic.row_bytes;
  return tasks.add(
      {.what = "reorder", .bytes = bytes, .uses = std::move(uses), .after = std::move(after)},
      ranks);
}

// The rows of its experts.
int LocalWork::reorder_rows(int rank, std::int64_t ranks, MergedTasks& tasks,
                            std::vector<int> after) {
  std::vector<Use> uses = resources_.reordering(rank);
  if (uses.empty()) return -1;
  const double rows = input_.routing.rows(input_.routing.of(rank)) * input_.graph.num_ranks();
  const double bytes = rows * static_cast<double>(input_.traffic.tokens) * input_.traffic.row_bytes;
  return tasks.add({.what = "reorder of rows",
                    .bytes = bytes,
                    .uses = std::move(uses),
                    .after = std::move(after)},
                   ranks);
}

// Every row of a node is written, and read again, by its processors.
void LocalWork::copy_rows(MergedTasks& dispatch, MergedTasks& combine) {
  const Machine::Host& host = input_.graph.machine().host;
  if (host.dispatch.gb_s <= 0 && host.combine.gb_s <= 0) return;
  const Topology& tree = input_.graph.tree();
  const bool alike = input_.classes.count() == 1;
  for (int node = 0; node < tree.num_nodes(); ++node) {
    const std::span<const int> ranks = tree.node_ranks(node);
    if (alike && node > 0) break;
    const std::int64_t nodes = alike ? tree.num_nodes() : 1;
    double rows = 0;
    for (const int rank : ranks) {
      const Routing::Ranks own = input_.routing.of(rank);
      rows += input_.traffic.row_per_rank ? input_.routing.touched(own) : input_.routing.rows(own);
    }
    rows *= static_cast<double>(input_.traffic.tokens) * tree.num_ranks();
    copy_rows_of(dispatch, host.dispatch, ranks, {rows, input_.traffic.row_bytes}, nodes);
    copy_rows_of(combine, host.combine, ranks, {rows, input_.traffic.output_bytes}, nodes);
  }
}

void LocalWork::copy_rows_of(MergedTasks& tasks, const Machine::Copying& cost,
                             std::span<const int> ranks, const RowSet& set, std::int64_t nodes) {
  const double bytes = set.rows * set.row_bytes;
  const bool beyond = bytes > input_.graph.machine().host.cache_mb * 1e6 && cost.beyond_gb_s > 0;
  const double gb_s = beyond ? cost.beyond_gb_s : cost.gb_s;
  if (gb_s <= 0) return;
  const double us_per_byte = 1 / (gb_s * 1e3) + cost.row_ns / 1e3 / set.row_bytes;
  tasks.add({.what = "copies",
             .bytes = bytes,
             .latency_us = cost.rank_us * static_cast<double>(ranks.size()),
             .uses = {resources_.host(ranks.front(), us_per_byte)}},
            nodes);
}

}  // namespace ferry::internal
