// ExchangeParts: the objects that all operations of an exchange share. ExchangeState owns them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/return_pool.h"
#include "exchange/protocol/protocol.h"
#include "exchange/setup/setup.h"
#include "exchange/setup/window_view.h"
#include "exchange/sums/pending_tokens.h"
#include "exchange/trace/trace.h"
#include "exchange/ways/ways.h"
#include "exchange/workers/store_choice.h"
#include "exchange/workers/worker_pool.h"
#include "group/state.h"
#include "memory/pool.h"
#include "routing/placement.h"
#include "routing/route.h"
#include "topology/subtrees.h"

namespace ferry::internal {

struct ExchangeParts {
  std::shared_ptr<GroupState> group;
  std::unique_ptr<const Setup> setup;
  std::string terms;  // on which newcomers join the exchange
  WindowView view;
  std::shared_ptr<Pool> pool;
  Ways ways;
  Protocol protocol;
  std::shared_ptr<WorkerPool> workers;
  StoreChoice stores;
  std::unique_ptr<Trace> trace;  // null unless FERRY_TRACE is set
  // Memory of routes, place(), list_rows() and combines, kept so that it is allocated once.
  std::shared_ptr<ReturnPool<Route>> routes = std::make_shared<ReturnPool<Route>>();
  std::vector<const std::int32_t*> count_rows = {};  // [active ranks]
  ColumnSums column_sums = {};
  PendingTokens pending = {};
  ExchangeStats stats = {};

  // An empty route of this operation.
  std::shared_ptr<Route> new_route(const Issued& issued) const {
    std::shared_ptr<Route> route = routes->take([] { return std::make_unique<Route>(); });
    route->clear();
    route->exchange_id = setup->id;
    route->number = issued.number;
    route->active = issued.active;
    return route;
  }
  Record& record(int rank, std::uint64_t number) const noexcept {
    return view.record(rank, number);
  }
  // `table`: the forwarding table of a way.
  SubtreeRule subtree_rule(const ForwardingTable& table) const {
    return {&table, setup->choice.algorithm == Algorithm::kFullmesh};
  }
  // Between nodes: entries [first, first + count) of a route, by the subtree to which they go.
  Subtrees subtrees_of(const Route& route, std::int64_t first, int count) const {
    const ActiveSet& active = *route.active;
    return {subtree_rule(ways.table()), first, count, [&](std::int64_t entry) {
              const RowRef ref = route.refs[entry];
              return ref.sent() ? active.ranks[active.index(ref.member, active.tp_rank)] : -1;
            }};
  }
  bool here(int rank) const noexcept { return view.here(rank); }
};

}  // namespace ferry::internal
