// ExchangeParts: what the operations of an exchange work with. One for all of them, owned by
// ExchangeState.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/internode/forwarder.h"
#include "exchange/internode/subtrees.h"
#include "exchange/protocol.h"
#include "exchange/setup.h"
#include "exchange/store_choice.h"
#include "exchange/window_view.h"
#include "exchange/worker_pool.h"
#include "group/state.h"
#include "memory/pool.h"
#include "routing/placement.h"
#include "routing/route.h"
#include "topology/mate.h"

namespace ferry::internal {

// Tokens of a combine.
struct TokenLists {
  std::vector<std::int32_t> left, ready;  // not reduced; of these, what can be reduced now
};

struct ExchangeParts {
  std::shared_ptr<GroupState> group;
  std::unique_ptr<const Setup> setup;
  WindowView view;
  std::shared_ptr<Pool> pool;
  std::shared_ptr<Forwarder> forwarder;   // with several nodes
  std::shared_ptr<Forwarder> second_way;  // where groups of the outermost level have one
  Protocol protocol;
  std::shared_ptr<WorkerPool> workers;
  StoreChoice stores;
  // What place(), list_rows() and a combine need, kept so that it is allocated once.
  ColumnSums column_sums = {};
  TokenLists tokens = {};
  ExchangeStats stats = {};

  Record& record(int rank, std::uint64_t number) const noexcept {
    return view.record(rank, number);
  }
  // By which the tokens of an operation reach other nodes, and their sums return.
  std::vector<Forwarder*> ways(const ActiveSet& active) const {
    std::vector<Forwarder*> ways{forwarder.get()};
    if (second_way && active.all()) ways.push_back(second_way.get());
    return ways;
  }
  // Which of them a token takes.
  std::size_t way_of(std::int64_t token, std::size_t num_ways) const noexcept {
    if (num_ways == 1) return 0;
    return takes_second_way(token, group->topology().level(0).link.second_share()) ? 1 : 0;
  }
  SubtreeRule subtree_rule(const Forwarder& way) const {
    return {&way.table(), setup->choice.algorithm == Algorithm::kFullmesh};
  }
  CrossedBytes crossed(int level) const {
    CrossedBytes sum;
    for (const Forwarder* way : {forwarder.get(), second_way.get()}) {
      if (!way) continue;
      const CrossedBytes crossed = way->crossed(level);
      sum.rows += crossed.rows;
      sum.all += crossed.all;
    }
    return sum;
  }
  // Between nodes: entries [first, first + count) of a route by where they go.
  Subtrees subtrees_of(const Route& route, std::int64_t first, int count) const {
    const ActiveSet& active = *route.active;
    return {subtree_rule(*forwarder), first, count, [&](std::int64_t entry) {
              const RowRef ref = route.refs[entry];
              return ref.sent() ? active.ranks[active.index(ref.member, active.position)] : -1;
            }};
  }
  bool here(int rank) const noexcept { return view.here(rank); }
};

}  // namespace ferry::internal
