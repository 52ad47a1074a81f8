// What a call may be. Every check names the value and the limit; nothing was sent when one of them
// refuses.
#include <fmt/format.h>

#include <cmath>

#include "exchange/state.h"

namespace ferry::internal {

namespace {

template <typename... Values>
Status refuse_with(int rank, fmt::format_string<Values...> text, Values&&... values) {
  return {Code::kInvalidArgument, fmt::format(text, std::forward<Values>(values)...), rank};
}

struct Bytes {
  const void* data;
  std::size_t length;
};

bool overlap(Bytes a, Bytes b) {
  const auto first = reinterpret_cast<std::uintptr_t>(a.data),
             second = reinterpret_cast<std::uintptr_t>(b.data);
  return a.data && b.data && first < second + b.length && second < first + a.length;
}

}  // namespace

Status ExchangeState::check_dispatch(const DispatchArgs& args) {
  const Rows& tokens = args.tokens;
  if (in_flight_.size() >= static_cast<std::size_t>(config_.depth)) {
    return refuse_with(rank_, "dispatch: {} operations are in flight, the depth is {}",
                       in_flight_.size(), config_.depth);
  }
  if (tokens.num_rows < 0 || tokens.num_rows > config_.max_tokens) {
    return refuse_with(rank_, "dispatch: {} tokens, max_tokens is {}", tokens.num_rows,
                       config_.max_tokens);
  }
  if (tokens.num_rows > 0) {
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
  }
  return args.cached ? check_cached(args) : check_ids(args);
}

Status ExchangeState::check_ids(const DispatchArgs& args) {
  const TopkIds& ids = args.topk_ids;
  const std::int64_t num_tokens = args.tokens.num_rows;
  if (num_tokens > 0) {
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
  }
  experts_.resize(num_tokens * config_.top_k);
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    if (Status status = read_ids(args, token); !status.ok()) return status;
  }
  return {};
}

// Ids of one token become experts, -1 where not sent.
Status ExchangeState::read_ids(const DispatchArgs& args, std::int64_t token) {
  const bool narrow = args.topk_ids.type == IndexType::kInt32;
  const bool token_sent = !args.token_mask || args.token_mask[token] != 0;
  for (int k = 0; k < config_.top_k; ++k) {
    const std::int64_t i = token * config_.top_k + k;
    const std::int64_t id = narrow ? static_cast<const std::int32_t*>(args.topk_ids.data)[i]
                                   : static_cast<const std::int64_t*>(args.topk_ids.data)[i];
    if (id < -1 || id >= config_.num_experts) {
      return refuse_with(rank_, "dispatch: top-k id {} at token {}, k {} is outside [-1, {})", id,
                         token, k, config_.num_experts);
    }
    const bool sent = token_sent && id >= 0 && (!args.topk_mask || args.topk_mask[i] != 0);
    if (sent && args.topk_weights && std::isnan(args.topk_weights[i])) {
      return refuse_with(rank_, "dispatch: the weight at token {}, k {} is NaN", token, k);
    }
    experts_[i] = sent ? static_cast<std::int32_t>(id) : -1;
  }
  return {};
}

Status ExchangeState::check_cached(const DispatchArgs& args) const {
  const Route& route = *args.cached.route();
  if (route.exchange_id != id_)
    return refuse_with(rank_, "dispatch: the cached handle is of exchange {}, this is {}",
                       route.exchange_id, id_);
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

Status ExchangeState::check_combine(const CombineArgs& args) const {
  if (in_flight_.size() >= static_cast<std::size_t>(config_.depth)) {
    return refuse_with(rank_, "combine: {} operations are in flight, the depth is {}",
                       in_flight_.size(), config_.depth);
  }
  if (!args.handle) return refuse_with(rank_, "combine: the handle is empty");
  const Route& route = *args.handle.route();
  const Rows& rows = args.expert_rows;
  if (route.exchange_id != id_)
    return refuse_with(rank_, "combine: the handle is of exchange {}, this is {}",
                       route.exchange_id, id_);
  if (rows.dtype > DataType::kFp32)
    return refuse_with(rank_, "combine: expert rows are {}, need bf16, fp16 or fp32",
                       data_type_name(rows.dtype));
  if (args.out_dtype > DataType::kFp32)
    return refuse_with(rank_, "combine: out is {}, need bf16, fp16 or fp32",
                       data_type_name(args.out_dtype));
  const std::int64_t most =
      config_.max_output_row_bytes / static_cast<std::int64_t>(element_bytes(rows.dtype));
  if (rows.hidden < 1 || rows.hidden > most) {
    return refuse_with(
        rank_, "combine: expert rows have hidden {}, need 1 to {} (max_output_row_bytes {})",
        rows.hidden, most, config_.max_output_row_bytes);
  }
  if (rows.num_rows != route.num_rows)
    return refuse_with(rank_, "combine: {} expert rows, the dispatch received {}", rows.num_rows,
                       route.num_rows);
  if (pitch_of(rows) < dense_pitch(rows))
    return refuse_with(rank_, "combine: pitch of {} bytes, a row has {}", rows.pitch_bytes,
                       dense_pitch(rows));
  if (rank_major() && args.topk_weights)
    return refuse_with(
        rank_, "combine: rank_major sums rows that the caller weighted; topk_weights must be null");
  for (std::size_t i = 0; args.topk_weights && i < route.refs.size(); ++i) {
    if (route.refs[i].rank >= 0 && std::isnan(args.topk_weights[i])) {
      return refuse_with(rank_, "combine: the weight at token {}, k {} is NaN", i / route.top_k,
                         i % route.top_k);
    }
  }
  return check_combine_buffers(args);
}

Status ExchangeState::check_combine_buffers(const CombineArgs& args) const {
  const Route& route = *args.handle.route();
  const Rows& rows = args.expert_rows;
  const std::size_t out_row = rows.hidden * element_bytes(args.out_dtype);
  const std::size_t out_pitch = args.out_pitch_bytes ? args.out_pitch_bytes : out_row;
  if (args.out_pitch_bytes < 0 || out_pitch < out_row) {
    return refuse_with(rank_, "combine: out has a pitch of {} bytes, a row has {}",
                       args.out_pitch_bytes, out_row);
  }
  if (rows.num_rows > 0 && rows.data == nullptr)
    return refuse_with(rank_, "combine: {} expert rows at a null address", rows.num_rows);
  if (released(rows))
    return refuse_with(rank_,
                       "combine: the expert rows lie in a buffer of the window that was released");
  if (route.num_tokens > 0 && args.out == nullptr)
    return refuse_with(rank_, "combine: out of {} tokens is at a null address", route.num_tokens);
  if (args.out_topk_weights && !args.row_weights && rows.num_rows > 0) {
    return refuse_with(rank_,
                       "combine: out_topk_weights needs row_weights on every rank, this rank has "
                       "{} rows and gave none",
                       rows.num_rows);
  }
  if (route.num_tokens == 0) return {};
  const Bytes out{args.out, (route.num_tokens - 1) * out_pitch + out_row};
  const Bytes in{rows.data, rows.num_rows
                                ? (rows.num_rows - 1) * static_cast<std::size_t>(pitch_of(rows)) +
                                      dense_pitch(rows)
                                : 0};
  if (overlap(out, in)) return refuse_with(rank_, "combine: out overlaps the expert rows");
  if (pool_->find(args.out, out.length).in_window)
    return refuse_with(rank_,
                       "combine: out lies in the window; results go to the caller's own memory");
  if (overlap(out, {args.topk_weights, route.refs.size() * sizeof(float)}))
    return refuse_with(rank_, "combine: out overlaps topk_weights");
  for (int i = 0; i < 2; ++i) {
    const bool same = args.bias[i] == args.out && out_pitch == out_row;
    if (!same && overlap(out, {args.bias[i], route.num_tokens * out_row}))
      return refuse_with(rank_, "combine: out overlaps bias {} without being the same", i);
  }
  return {};
}

// True for rows in a part of the window that no view keeps.
bool ExchangeState::released(const Rows& rows) const noexcept {
  if (rows.num_rows == 0) return false;
  const Pool::Found found =
      pool_->find(rows.data, (rows.num_rows - 1) * pitch_of(rows) + dense_pitch(rows));
  return found.in_window && !found.buffer;
}

}  // namespace ferry::internal
