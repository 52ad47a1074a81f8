// Limits on the arguments of a combine.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "exchange/arguments/argument_rules.h"
#include "exchange/arguments/refusal.h"

namespace ferry::internal {

namespace {

// The column of the first copy expert. Later special experts have lower columns.
std::int32_t first_copy(const Setup& setup) { return kFirstSpecial - setup.config.special.zero; }

// With kRankMajor the caller has weighted its rows, so topk_weights are for special experts only.
Status check_weights(const Setup& setup, const CombineArgs& args, const Route& route) {
  if (!args.topk_weights) return {};
  if (setup.rank_major() && setup.config.special.copy + setup.config.special.constant == 0) {
    return refuse_with(
        setup.rank,
        "combine: rank_major sums rows that the caller weighted; topk_weights must be null");
  }
  return check_weights_are_numbers(setup, "combine", args.topk_weights, route);
}

// Copy and constant experts compute from the tokens that were dispatched.
Status check_special(const Setup& setup, const CombineArgs& args, const Route& route) {
  if (!reads_tokens(setup, route)) return {};
  const Rows none;
  const Rows& tokens = args.dispatched ? args.dispatched->tokens : none;
  if (tokens.data == nullptr || tokens.num_rows != route.num_tokens ||
      tokens.hidden != args.expert_rows.hidden || tokens.dtype > DataType::kFp32 ||
      pitch_of(tokens) < dense_pitch(tokens)) {
    return refuse_with(setup.rank,
                       "combine: copy and constant experts need dispatched->tokens [{}, {}] of "
                       "bf16, fp16 or fp32, got [{}, {}] of {} with a pitch of {} bytes at {}",
                       route.num_tokens, args.expert_rows.hidden, tokens.num_rows, tokens.hidden,
                       data_type_name(tokens.dtype), pitch_of(tokens), tokens.data);
  }
  const std::int32_t first_constant = first_copy(setup) - setup.config.special.copy;
  const bool constants =
      std::ranges::any_of(route.columns, [&](auto column) { return column <= first_constant; });
  const ConstantExperts& given = args.constants;
  if (constants && !(given.alpha1 && given.alpha2 && given.v)) {
    return refuse_with(setup.rank,
                       "combine: constant experts need constants.alpha1, alpha2 and v, got {}, {}, "
                       "{}",
                       given.alpha1, given.alpha2, given.v);
  }
  return {};
}

Status check_buffers(const Setup& setup, const CombineArgs& args, const Route& route) {
  const std::size_t out_row = args.expert_rows.hidden * element_bytes(args.out_dtype);
  const std::size_t out_pitch = args.out_pitch_bytes ? args.out_pitch_bytes : out_row;
  if (args.out_pitch_bytes < 0 || out_pitch < out_row) {
    return refuse_with(setup.rank, "combine: out has a pitch of {} bytes, a row has {}",
                       args.out_pitch_bytes, out_row);
  }
  const ResidualNorm& norm = args.norm;
  if (norm.residual && route.num_tokens > 0 && !(norm.gamma && norm.y))
    return refuse_with(setup.rank, "combine: norm needs gamma and y, got {} and {}", norm.gamma,
                       norm.y);
  if (norm.residual && !(norm.epsilon >= 0 && std::isfinite(norm.epsilon)))
    return refuse_with(setup.rank, "combine: norm.epsilon is {}, need 0 or more", norm.epsilon);
  if (route.num_tokens == 0) return {};  // an empty array may be at a null address
  if (!norm.residual && (norm.gamma || norm.y || norm.rstd))
    return refuse_with(setup.rank, "combine: norm has gamma, y or rstd, and no residual");
  if (args.out == nullptr)
    return refuse_with(setup.rank, "combine: out of {} tokens is at a null address",
                       route.num_tokens);
  return check_overlaps(setup, args, route);
}

}  // namespace

bool reads_tokens(const Setup& setup, const Route& route) {
  if (setup.config.special.copy + setup.config.special.constant == 0) return false;
  const std::int32_t first = first_copy(setup);
  return std::ranges::any_of(route.columns, [&](auto column) { return column <= first; });
}

Status check_combine(const Setup& setup, const CombineArgs& args) {
  const Rows& rows = args.expert_rows;
  if (rows.dtype > DataType::kFp32)
    return refuse_with(setup.rank, "combine: expert rows are {}, need bf16, fp16 or fp32",
                       data_type_name(rows.dtype));
  if (args.out_dtype > DataType::kFp32)
    return refuse_with(setup.rank, "combine: out is {}, need bf16, fp16 or fp32",
                       data_type_name(args.out_dtype));
  if (args.partials != Partials::kNone && args.partials != Partials::kPerRank)
    return refuse_with(setup.rank, "combine: partials is {}, need 0 or 1",
                       static_cast<int>(args.partials));
  if (args.partials == Partials::kPerRank && setup.rank_major())
    return refuse_with(setup.rank,
                       "combine: partials per rank need an expert layout; rank_major rows are the "
                       "caller's partials already");
  const std::int64_t most =
      setup.config.max_output_row_bytes / static_cast<std::int64_t>(element_bytes(rows.dtype));
  if (rows.hidden < 1 || rows.hidden > most) {
    return refuse_with(
        setup.rank, "combine: expert rows have hidden {}, need 1 to {} (max_output_row_bytes {})",
        rows.hidden, most, setup.config.max_output_row_bytes);
  }
  if (pitch_of(rows) < dense_pitch(rows))
    return refuse_with(setup.rank, "combine: pitch of {} bytes, a row has {}", rows.pitch_bytes,
                       dense_pitch(rows));
  if (rows.num_rows < 0 || rows.num_rows > setup.max_rows())
    return refuse_with(setup.rank, "combine: {} expert rows, need 0 to {}", rows.num_rows,
                       setup.max_rows());
  if (rows.num_rows > 0 && rows.data == nullptr)
    return refuse_with(setup.rank, "combine: {} expert rows at a null address", rows.num_rows);
  if (args.out_topk_weights && !args.row_weights && rows.num_rows > 0) {
    return refuse_with(setup.rank,
                       "combine: out_topk_weights needs row_weights on every rank, this rank has "
                       "{} rows and gave none",
                       rows.num_rows);
  }
  return {};
}

Status check_dispatched(const Setup& setup, const CombineArgs& args) {
  if (!args.dispatched)
    return refuse_with(setup.rank, "combine: the handle is empty, and dispatched is null");
  const std::int64_t num_tokens = args.dispatched->tokens.num_rows;
  if (num_tokens < 0 || num_tokens > setup.config.max_tokens)
    return refuse_with(setup.rank, "combine: {} tokens were dispatched, max_tokens is {}",
                       num_tokens, setup.config.max_tokens);
  return check_token_rank(setup, "combine", num_tokens);
}

Status check_combine_handle(const Setup& setup, const ActiveSet& active, const CombineArgs& args) {
  const Route& route = *args.handle.route();
  if (route.exchange_id != setup.id)
    return refuse_with(setup.rank, "combine: the handle is of exchange {}, this is {}",
                       route.exchange_id, setup.id);
  if (route.active.get() != &active && route.active->ranks != active.ranks) {
    return refuse_with(setup.rank,
                       "combine: the handle is of a dispatch of ranks {}, the view has ranks {}",
                       fmt::join(route.active->ranks, ", "), fmt::join(active.ranks, ", "));
  }
  if (args.expert_rows.num_rows != route.received.num_rows)
    return refuse_with(setup.rank, "combine: {} expert rows, the dispatch received {}",
                       args.expert_rows.num_rows, route.received.num_rows);
  return {};
}

Status check_combine_routed(const Setup& setup, const CombineArgs& args, const Route& route) {
  if (Status status = check_weights(setup, args, route); !status.ok()) return status;
  if (Status status = check_special(setup, args, route); !status.ok()) return status;
  return check_buffers(setup, args, route);
}

}  // namespace ferry::internal
