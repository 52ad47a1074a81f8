// ExchangeParts: what the operations of an exchange work with. One for all of them, owned by
// ExchangeState.
#pragma once

#include <memory>

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

namespace ferry::internal {

struct ExchangeParts {
  std::shared_ptr<GroupState> group;
  std::unique_ptr<const Setup> setup;
  WindowView view;
  std::shared_ptr<Pool> pool;
  std::shared_ptr<Forwarder> forwarder;  // with several nodes
  Protocol protocol;
  std::unique_ptr<WorkerPool> workers;
  StoreChoice stores;
  ColumnSums column_sums = {};  // what place() needs, kept so that it is allocated once
  ExchangeStats stats = {};

  Record& record(int rank, std::uint64_t number) const noexcept {
    return view.record(rank, number);
  }
  SubtreeRule subtree_rule() const {
    return {&forwarder->table(), setup->choice.algorithm == Algorithm::kFullmesh};
  }
  // Between nodes: entries [first, first + count) of a route by where they go.
  Subtrees subtrees_of(const Route& route, std::int64_t first, int count) const {
    const ActiveSet& active = *route.active;
    return {subtree_rule(), first, count, [&](std::int64_t entry) {
              const RowRef ref = route.refs[entry];
              return ref.sent() ? active.ranks[active.index(ref.member, active.position)] : -1;
            }};
  }
  bool here(int rank) const noexcept { return view.here(rank); }
};

}  // namespace ferry::internal
