// What a dispatch may be, and its top-k ids as the columns of a route. Every check names the value
// and the limit; nothing was sent when one of them refuses.
#include <fmt/ranges.h>

#include <cmath>

#include "exchange/internode/forwarder.h"
#include "exchange/refusal.h"
#include "exchange/state.h"

namespace ferry::internal {

// Makes active_ the set of ranks that this call names.
Status ExchangeState::check_active(std::span<const int> chosen) {
  if (chosen.empty()) {
    active_ = everybody_;
  } else if (!std::equal(chosen.begin(), chosen.end(), active_->chosen.begin(),
                         active_->chosen.end())) {
    try {
      active_ = std::make_shared<ActiveSet>(config_, size_, rank_, chosen);
    } catch (const Error& error) {
      active_ = last_set_;
      return {error.code(), error.what(), rank_};
    }
  }
  // At a change every rank finishes its own operations, those that stay out too: others wait for
  // it.
  const bool changed = active_ != last_set_ || last_taken_ + 1 < issued_;
  if (changed) {
    if (Status status = settle(last_taken_); !status.ok()) return status;
  }
  if (!active_->contains_me()) return {};
  if (changed) {
    std::optional<ForwardingTable> next;
    // Told by the table that is common from now on: whoever passed on before may take no part.
    if (forwarder_) next = forwarder_->tell_read(active_->waited, active_->all());
    let_last_set_finish();
    if (forwarder_) forwarder_->use(std::move(*next));
  }
  last_set_ = active_;
  last_taken_ = issued_;
  return {};
}

Status ExchangeState::check_dispatch(const DispatchArgs& args) {
  if (in_flight_.size() >= static_cast<std::size_t>(config_.depth)) {
    return refuse_with(rank_, "dispatch: {} operations are in flight, the depth is {}",
                       in_flight_.size(), config_.depth);
  }
  if (Status status = check_tokens(args.tokens); !status.ok()) return status;
  return check_scales(args);
}

Status ExchangeState::check_tokens(const Rows& tokens) const {
  if (tokens.num_rows < 0 || tokens.num_rows > config_.max_tokens) {
    return refuse_with(rank_, "dispatch: {} tokens, max_tokens is {}", tokens.num_rows,
                       config_.max_tokens);
  }
  if (tokens.num_rows == 0) return {};
  if (tokens.hidden != config_.hidden)
    return refuse_with(rank_, "dispatch: tokens have hidden {}, the exchange {}", tokens.hidden,
                       config_.hidden);
  if (tokens.dtype != config_.dtype) {
    return refuse_with(rank_, "dispatch: tokens are {}, the exchange is {}",
                       data_type_name(tokens.dtype), data_type_name(config_.dtype));
  }
  if (tokens.data == nullptr)
    return refuse_with(rank_, "dispatch: {} tokens at a null address", tokens.num_rows);
  if (pitch_of(tokens) < dense_pitch(tokens)) {
    return refuse_with(rank_, "dispatch: pitch of {} bytes, a row has {}", tokens.pitch_bytes,
                       dense_pitch(tokens));
  }
  if (released(tokens))
    return refuse_with(rank_,
                       "dispatch: the tokens lie in a buffer of the window that was released");
  return {};
}

Status ExchangeState::check_scales(const DispatchArgs& args) const {
  const ScaleRows& scales = args.scales;
  if (args.tokens.num_rows > 0 && (config_.scale_bytes > 0) != (args.token_scales != nullptr)) {
    return refuse_with(rank_, "dispatch: token_scales are {}, the exchange has scale_bytes {}",
                       args.token_scales ? "given" : "null", config_.scale_bytes);
  }
  if (scales.data == nullptr) {
    if (config_.wire == Wire::kInt8Static && args.tokens.num_rows > 0)
      return refuse_with(rank_, "dispatch: wire int8_static needs scales, they are null");
    return {};
  }
  if (config_.wire != Wire::kInt8 && config_.wire != Wire::kInt8Static) {
    return refuse_with(rank_, "dispatch: scales are for the int8 wires, this one is {}",
                       wire_name(config_.wire));
  }
  const int per_expert = config_.shared.num_experts + num_ids();
  if ((scales.num_rows != 1 && scales.num_rows != per_expert) ||
      (scales.num_channels != 1 && scales.num_channels != config_.hidden)) {
    return refuse_with(rank_, "dispatch: scales are [{}, {}], need [1 or {}, 1 or {}]",
                       scales.num_rows, scales.num_channels, per_expert, config_.hidden);
  }
  if (rank_major() && scales.num_rows > 1) {
    return refuse_with(rank_,
                       "dispatch: scales have {} rows, with rank_major a row serves several "
                       "experts: need 1",
                       scales.num_rows);
  }
  for (std::int64_t i = 0; i < scales.num_rows * scales.num_channels; ++i) {
    if (!std::isfinite(scales.data[i])) {
      return refuse_with(rank_,
                         "dispatch: the scale at row {}, channel {} is {}, need a finite one",
                         i / scales.num_channels, i % scales.num_channels, scales.data[i]);
    }
  }
  return {};
}

Status ExchangeState::check_cached(const DispatchArgs& args) const {
  const Route& route = *args.cached.route();
  if (route.exchange_id != id_)
    return refuse_with(rank_, "dispatch: the cached handle is of exchange {}, this is {}",
                       route.exchange_id, id_);
  if (route.active->chosen != active_->chosen) {
    return refuse_with(rank_, "dispatch: active_ranks [{}] with a cached handle of [{}]",
                       fmt::join(active_->chosen, ", "), fmt::join(route.active->chosen, ", "));
  }
  if (args.topk_ids.data || args.token_mask || args.topk_mask) {
    return refuse_with(
        rank_, "dispatch: a cached handle brings its own top-k ids and masks; got some as well");
  }
  if (args.tokens.num_rows != route.num_tokens) {
    return refuse_with(rank_, "dispatch: {} tokens with a cached handle of {}",
                       args.tokens.num_rows, route.num_tokens);
  }
  return {};
}

Status ExchangeState::check_ids(const DispatchArgs& args) const {
  const TopkIds& ids = args.topk_ids;
  const std::int64_t num_tokens = args.tokens.num_rows;
  if (num_tokens == 0) return {};
  if (ids.num_tokens != num_tokens || ids.top_k != config_.top_k) {
    return refuse_with(rank_, "dispatch: top-k ids are [{}, {}], need [{}, {}]", ids.num_tokens,
                       ids.top_k, num_tokens, config_.top_k);
  }
  if (ids.data == nullptr)
    return refuse_with(rank_, "dispatch: top-k ids of {} tokens at a null address", num_tokens);
  if (ids.type != IndexType::kInt32 && ids.type != IndexType::kInt64) {
    return refuse_with(rank_, "dispatch: top-k ids of type {}, need int32 or int64",
                       static_cast<int>(ids.type));
  }
  return check_replica_table(args);
}

// A route that knows which experts my tokens go to, and no slots yet.
Status ExchangeState::make_route(const DispatchArgs& args, std::shared_ptr<Route>& route) const {
  if (Status status = check_ids(args); !status.ok()) return status;
  route = std::make_shared<Route>();
  route->exchange_id = id_;
  route->number = issued_;
  route->active = active_;
  route->num_tokens = args.tokens.num_rows;
  route->top_k = config_.top_k;
  route->num_entries = config_.top_k + config_.shared.num_experts;
  route->columns.resize(route->num_tokens * route->num_entries);
  for (std::int64_t token = 0; token < route->num_tokens; ++token) {
    if (Status status = read_ids(args, token, *route); !status.ok()) return status;
  }
  return {};
}

Status ExchangeState::read_ids(const DispatchArgs& args, std::int64_t token, Route& route) const {
  std::int32_t* columns = route.columns.data() + token * route.num_entries;
  const bool narrow = args.topk_ids.type == IndexType::kInt32;
  const bool token_sent = !args.token_mask || args.token_mask[token] != 0;
  const std::int64_t end = num_ids() + config_.special.total();
  bool takes_part = false;
  for (int k = 0; k < route.top_k; ++k) {
    const std::int64_t i = token * route.top_k + k;
    const std::int64_t id = narrow ? static_cast<const std::int32_t*>(args.topk_ids.data)[i]
                                   : static_cast<const std::int64_t*>(args.topk_ids.data)[i];
    if (id < -1 || id >= end) {
      return refuse_with(rank_, "dispatch: top-k id {} at token {}, k {} is outside [-1, {})", id,
                         token, k, end);
    }
    const bool sent = token_sent && id >= 0 && (!args.topk_mask || args.topk_mask[i] != 0);
    if (sent && args.topk_weights && std::isnan(args.topk_weights[i])) {
      return refuse_with(rank_, "dispatch: the weight at token {}, k {} is NaN", token, k);
    }
    takes_part = takes_part || sent;
    columns[k] = sent ? column_of(args, token, static_cast<std::int32_t>(id)) : -1;
  }
  for (int shared = 0; shared < config_.shared.num_experts; ++shared) {
    columns[route.top_k + shared] =
        takes_part ? active_->map.shared_column(active_->member, shared, token, route.num_tokens)
                   : -1;
  }
  return {};
}

// Where an id leads: a column, or -1 when its owner does not take part, or a special expert.
std::int32_t ExchangeState::column_of(const DispatchArgs& args, std::int64_t token,
                                      std::int32_t id) const noexcept {
  if (id >= num_ids()) return kFirstSpecial - (id - num_ids());
  std::int32_t column = id;
  if (!logical_.empty()) {
    const std::vector<int>& instances = config_.replicas.instances[id];
    const auto count = static_cast<std::int64_t>(instances.size());
    const ReplicaChoice choice = config_.replicas.choice;
    column = instances[choice == ReplicaChoice::kByRank    ? active_->member % count
                       : choice == ReplicaChoice::kByToken ? token % count
                                                           : args.replica_table[id]];
  }
  return active_->map.owner(column) < 0 ? -1 : column;
}

Status ExchangeState::check_replica_table(const DispatchArgs& args) const {
  const std::vector<std::vector<int>>& instances = config_.replicas.instances;
  if (instances.empty() || config_.replicas.choice != ReplicaChoice::kByTable) return {};
  if (!args.replica_table)
    return refuse_with(rank_, "dispatch: replicas are chosen by table, and replica_table is null");
  for (std::size_t id = 0; id < instances.size(); ++id) {
    const std::int32_t instance = args.replica_table[id];
    if (instance < 0 || instance >= static_cast<std::int32_t>(instances[id].size())) {
      return refuse_with(rank_, "dispatch: replica_table[{}] is {}, expert {} has {} instances", id,
                         instance, id, instances[id].size());
    }
  }
  return {};
}

// True for rows in a part of the window that no view keeps.
bool ExchangeState::released(const Rows& rows) const noexcept {
  if (rows.num_rows == 0) return false;
  const Pool::Found found = pool_->find(rows.data, extent_of(rows));
  return found.in_window && !found.buffer;
}

}  // namespace ferry::internal
