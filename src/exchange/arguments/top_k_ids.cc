// Turns the top-k ids of a dispatch, or of a combine without a handle, into the columns of a route:
// routed experts, replicas, shared and special experts.
#include <fmt/ranges.h>

#include <cmath>

#include "base/limits.h"
#include "exchange/arguments/argument_rules.h"
#include "exchange/arguments/refusal.h"

namespace ferry::internal {

namespace {

struct TokenId {
  std::int64_t token;
  std::int32_t id;
};

Status check_replica_table(const Setup& setup, const DispatchArgs& args) {
  const std::vector<std::vector<int>>& instances = setup.config.replicas.instances;
  if (instances.empty() || setup.config.replicas.choice != ReplicaChoice::kByTable) return {};
  if (!args.replica_table)
    return refuse_with(setup.rank,
                       "dispatch: replicas are chosen by table, and replica_table is null");
  for (std::size_t id = 0; id < instances.size(); ++id) {
    const std::int32_t instance = args.replica_table[id];
    if (instance < 0 || instance >= static_cast<std::int32_t>(instances[id].size())) {
      return refuse_with(setup.rank,
                         "dispatch: replica_table[{}] is {}, expert {} has {} instances", id,
                         instance, id, instances[id].size());
    }
  }
  return {};
}

Status check_ids(const Setup& setup, const DispatchArgs& args) {
  const TopkIds& ids = args.topk_ids;
  const std::int64_t num_tokens = args.tokens.num_rows;
  if (num_tokens == 0) return {};
  if (ids.num_tokens != num_tokens || ids.top_k != setup.config.top_k) {
    return refuse_with(setup.rank, "dispatch: top-k ids are [{}, {}], need [{}, {}]",
                       ids.num_tokens, ids.top_k, num_tokens, setup.config.top_k);
  }
  if (ids.data == nullptr)
    return refuse_with(setup.rank, "dispatch: top-k ids of {} tokens at a null address",
                       num_tokens);
  if (ids.type != IndexType::kInt32 && ids.type != IndexType::kInt64) {
    return refuse_with(setup.rank, "dispatch: top-k ids of type {}, need int32 or int64",
                       static_cast<int>(ids.type));
  }
  return check_replica_table(setup, args);
}

// The column of the id of a routed expert; -1: the rank that holds the expert does not take part.
std::int32_t column_of(const Setup& setup, const DispatchArgs& args, const ActiveSet& active,
                       TokenId at) noexcept {
  std::int32_t column = at.id;
  if (!setup.logical.empty()) {
    const std::vector<int>& instances = setup.config.replicas.instances[at.id];
    const auto count = static_cast<std::int64_t>(instances.size());
    const ReplicaChoice choice = setup.config.replicas.choice;
    column = instances[choice == ReplicaChoice::kByRank    ? active.member % count
                       : choice == ReplicaChoice::kByToken ? at.token % count
                                                           : args.replica_table[at.id]];
  }
  return active.map.owner(column) < 0 ? -1 : column;
}

Status read_ids(const Setup& setup, const DispatchArgs& args, std::int64_t token, Route& route) {
  const ActiveSet& active = *route.active;
  std::int32_t* columns = route.columns.data() + token * route.num_entries;
  const bool narrow = args.topk_ids.type == IndexType::kInt32;
  const bool token_sent = !args.token_mask || args.token_mask[token] != 0;
  const std::int32_t num_ids = setup.num_ids(), end = num_ids + setup.config.special.total();
  const std::int64_t first = token * route.top_k;
  const int top_k = route.top_k;
  // Whether the view lacks ranks, and the caller has not accepted that by naming active ranks.
  const bool needs_all = !active.all() && args.active_ranks.empty();
  bool takes_part = false;
  for (int k = 0; k < top_k; ++k) {
    const std::int64_t i = first + k;
    const std::int64_t id = narrow ? static_cast<const std::int32_t*>(args.topk_ids.data)[i]
                                   : static_cast<const std::int64_t*>(args.topk_ids.data)[i];
    if (id < -1 || id >= end) {
      return refuse_with(setup.rank, "dispatch: top-k id {} at token {}, k {} is outside [-1, {})",
                         id, token, k, end);
    }
    const bool sent = token_sent && id >= 0 && (!args.topk_mask || args.topk_mask[i] != 0);
    if (sent && args.topk_weights && std::isnan(args.topk_weights[i])) {
      return refuse_with(setup.rank, "dispatch: the weight at token {}, k {} is NaN", token, k);
    }
    takes_part = takes_part || sent;
    const auto known = static_cast<std::int32_t>(id);
    columns[k] = !sent              ? -1
                 : known >= num_ids ? kFirstSpecial - (known - num_ids)
                                    : column_of(setup, args, active, {token, known});
    if (columns[k] == -1 && sent && needs_all) {
      return refuse_with(setup.rank,
                         "dispatch: expert {} at token {}, k {} is of a rank that the view lacks; "
                         "its ranks are {}",
                         id, token, k, fmt::join(active.ranks, ", "));
    }
  }
  for (int shared = 0; shared < setup.config.shared.num_experts; ++shared) {
    columns[route.top_k + shared] =
        takes_part ? active.map.shared_column(active.member, shared, token, route.num_tokens) : -1;
  }
  return {};
}

}  // namespace

Status fill_route(const Setup& setup, const DispatchArgs& args, Route& route) {
  if (Status status = check_ids(setup, args); !status.ok()) return status;
  route.num_tokens = args.tokens.num_rows;
  route.top_k = setup.config.top_k;
  route.num_entries = setup.config.top_k + setup.config.shared.num_experts;
  route.columns.resize(route.num_tokens * route.num_entries);
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    if (Status status = read_ids(setup, args, token, route); !status.ok()) return status;
  }
  return {};
}

}  // namespace ferry::internal
