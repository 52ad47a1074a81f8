// Limits on the tokens, scales and cached handle of a dispatch.
#include <fmt/ranges.h>

#include <cmath>

#include "exchange/arguments/argument_rules.h"
#include "exchange/arguments/refusal.h"

namespace ferry::internal {

namespace {

Status check_tokens(const Setup& setup, const Rows& tokens) {
  if (tokens.num_rows < 0 || tokens.num_rows > setup.config.max_tokens) {
    return refuse_with(setup.rank, "dispatch: {} tokens, max_tokens is {}", tokens.num_rows,
                       setup.config.max_tokens);
  }
  if (tokens.num_rows == 0) return {};
  if (Status status = check_token_rank(setup, "dispatch", tokens.num_rows); !status.ok())
    return status;
  if (tokens.hidden != setup.config.hidden)
    return refuse_with(setup.rank, "dispatch: tokens have hidden {}, the exchange {}",
                       tokens.hidden, setup.config.hidden);
  if (tokens.dtype != setup.config.dtype) {
    return refuse_with(setup.rank, "dispatch: tokens are {}, the exchange is {}",
                       data_type_name(tokens.dtype), data_type_name(setup.config.dtype));
  }
  if (tokens.data == nullptr)
    return refuse_with(setup.rank, "dispatch: {} tokens at a null address", tokens.num_rows);
  if (pitch_of(tokens) < dense_pitch(tokens)) {
    return refuse_with(setup.rank, "dispatch: pitch of {} bytes, a row has {}", tokens.pitch_bytes,
                       dense_pitch(tokens));
  }
  return {};
}

Status check_scales(const Setup& setup, const DispatchArgs& args) {
  const ScaleRows& scales = args.scales;
  if (args.tokens.num_rows > 0 &&
      (setup.config.scale_bytes > 0) != (args.token_scales != nullptr)) {
    return refuse_with(setup.rank, "dispatch: token_scales are {}, the exchange has scale_bytes {}",
                       args.token_scales ? "given" : "null", setup.config.scale_bytes);
  }
  if (scales.data == nullptr) {
    if (setup.config.wire == Wire::kInt8Static && args.tokens.num_rows > 0)
      return refuse_with(setup.rank, "dispatch: wire int8_static needs scales, they are null");
    return {};
  }
  if (setup.config.wire != Wire::kInt8 && setup.config.wire != Wire::kInt8Static) {
    return refuse_with(setup.rank, "dispatch: scales are for the int8 wires, this one is {}",
                       wire_name(setup.config.wire));
  }
  const int per_expert = setup.config.shared.num_experts + setup.num_ids();
  if ((scales.num_rows != 1 && scales.num_rows != per_expert) ||
      (scales.num_channels != 1 && scales.num_channels != setup.config.hidden)) {
    return refuse_with(setup.rank, "dispatch: scales are [{}, {}], need [1 or {}, 1 or {}]",
                       scales.num_rows, scales.num_channels, per_expert, setup.config.hidden);
  }
  if (setup.rank_major() && scales.num_rows > 1) {
    return refuse_with(setup.rank,
                       "dispatch: scales have {} rows, with rank_major a row serves several "
                       "experts: need 1",
                       scales.num_rows);
  }
  for (std::int64_t i = 0; i < scales.num_rows * scales.num_channels; ++i) {
    if (!std::isfinite(scales.data[i])) {
      return refuse_with(setup.rank,
                         "dispatch: the scale at row {}, channel {} is {}, need a finite one",
                         i / scales.num_channels, i % scales.num_channels, scales.data[i]);
    }
  }
  return {};
}

}  // namespace

Status check_token_rank(const Setup& setup, const char* call, std::int64_t num_tokens) {
  if (setup.sends() || num_tokens == 0) return {};
  const ExchangeConfig& config = setup.config;
  const std::string where = config.tp_size == 1
                                ? fmt::format("rank {}", setup.rank)
                                : fmt::format("rank {} of a domain (tp_size {})",
                                              setup.rank / config.tp_size, config.tp_size);
  return refuse_with(setup.rank, "{}: {} tokens on {}, need 0 outside token_ranks [{}]", call,
                     num_tokens, where, fmt::join(config.token_ranks, ", "));
}

Status check_dispatch(const Setup& setup, const DispatchArgs& args) {
  if (Status status = check_tokens(setup, args.tokens); !status.ok()) return status;
  return check_scales(setup, args);
}

Status check_cached(const Setup& setup, const ActiveSet& active, const DispatchArgs& args) {
  const Route& route = *args.cached.route();
  if (route.exchange_id != setup.id)
    return refuse_with(setup.rank, "dispatch: the cached handle is of exchange {}, this is {}",
                       route.exchange_id, setup.id);
  if (route.active->chosen != active.chosen) {
    return refuse_with(setup.rank, "dispatch: active_ranks [{}] with a cached handle of [{}]",
                       fmt::join(active.chosen, ", "), fmt::join(route.active->chosen, ", "));
  }
  if (args.topk_ids.data || args.token_mask || args.topk_mask) {
    return refuse_with(
        setup.rank,
        "dispatch: a cached handle brings its own top-k ids and masks; got some as well");
  }
  if (args.tokens.num_rows != route.num_tokens) {
    return refuse_with(setup.rank, "dispatch: {} tokens with a cached handle of {}",
                       args.tokens.num_rows, route.num_tokens);
  }
  return check_weights_are_numbers(setup, "dispatch", args.topk_weights, route);
}

Status check_weights_are_numbers(const Setup& setup, const char* call, const float* weights,
                                 const Route& route) {
  if (!weights) return {};
  const std::int32_t* columns = route.columns.data();
  for (std::int64_t token = 0; token < route.num_tokens;
       ++token, columns += route.num_entries, weights += route.top_k) {
    for (int k = 0; k < route.top_k; ++k) {
      if (columns[k] != -1 && std::isnan(weights[k]))
        return refuse_with(setup.rank, "{}: the weight at token {}, k {} is NaN", call, token, k);
    }
  }
  return {};
}

}  // namespace ferry::internal
