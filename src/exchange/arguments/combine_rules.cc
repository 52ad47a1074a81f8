// Limits on the arguments of a combine.
#include <fmt/ranges.h>

#include <cmath>

#include "exchange/arguments/argument_rules.h"
#include "exchange/arguments/refusal.h"

namespace ferry::internal {

namespace {

struct Bytes {
  const void* data;
  std::size_t length;
};

bool overlap(Bytes a, Bytes b) {
  const auto first = reinterpret_cast<std::uintptr_t>(a.data),
             second = reinterpret_cast<std::uintptr_t>(b.data);
  return a.data && b.data && first < second + b.length && second < first + a.length;
}

// With kRankMajor the caller has weighted its rows, so topk_weights are for special experts only.
Status check_weights(const Setup& setup, const CombineArgs& args, const Route& route) {
  if (!args.topk_weights) return {};
  if (setup.rank_major() && setup.config.special.copy + setup.config.special.constant == 0) {
    return refuse_with(
        setup.rank,
        "combine: rank_major sums rows that the caller weighted; topk_weights must be null");
  }
  const std::int32_t* columns = route.columns.data();
  const float* weights = args.topk_weights;
  for (std::int64_t token = 0; token < route.num_tokens;
       ++token, columns += route.num_entries, weights += route.top_k) {
    for (int k = 0; k < route.top_k; ++k) {
      if (columns[k] != -1 && std::isnan(weights[k])) {
        return refuse_with(setup.rank, "combine: the weight at token {}, k {} is NaN", token, k);
      }
    }
  }
  return {};
}

// Copy and constant experts compute from the tokens that were dispatched.
Status check_special(const Setup& setup, const CombineArgs& args, const Route& route) {
  if (setup.config.special.copy + setup.config.special.constant == 0) return {};
  const std::int32_t first_copy = kFirstSpecial - setup.config.special.zero;
  const std::int32_t first_constant = first_copy - setup.config.special.copy;
  bool copies = false, constants = false;
  for (const std::int32_t column : route.columns) {
    copies = copies || column <= first_copy;
    constants = constants || column <= first_constant;
  }
  if (!copies) return {};
  const Rows none;
  const Rows& tokens = args.dispatched ? args.dispatched->tokens : none;
  if (tokens.data == nullptr || tokens.num_rows != route.num_tokens ||
      tokens.hidden != args.expert_rows.hidden || tokens.dtype > DataType::kFp32) {
    return refuse_with(setup.rank,
                       "combine: copy and constant experts need dispatched->tokens [{}, {}] of "
                       "bf16, fp16 or fp32, got [{}, {}] of {} at {}",
                       route.num_tokens, args.expert_rows.hidden, tokens.num_rows, tokens.hidden,
                       data_type_name(tokens.dtype), tokens.data);
  }
  const ConstantExperts& given = args.constants;
  if (constants && !(given.alpha1 && given.alpha2 && given.v)) {
    return refuse_with(setup.rank,
                       "combine: constant experts need constants.alpha1, alpha2 and v, got {}, {}, "
                       "{}",
                       given.alpha1, given.alpha2, given.v);
  }
  return {};
}

// Checks that out and norm.y do not overlap each other, the rows, or a bias, shared output or
// residual; and that out does not overlap topk_weights. Exception: out, if it is dense, or norm.y
// may replace a bias, the shared output or the residual in exactly the same memory.
Status check_out(const Setup& setup, const CombineArgs& args, const Route& route) {
  const Rows& rows = args.expert_rows;
  const std::size_t out_row = rows.hidden * element_bytes(args.out_dtype);
  const std::size_t out_pitch = args.out_pitch_bytes ? args.out_pitch_bytes : out_row;
  const std::size_t dense = route.num_tokens * out_row;
  const Bytes out{args.out, (route.num_tokens - 1) * out_pitch + out_row};
  const Bytes in{rows.data, extent_of(rows)};
  const Bytes y{args.norm.y, dense};
  if (overlap(out, in)) return refuse_with(setup.rank, "combine: out overlaps the expert rows");
  if (overlap(out, {args.topk_weights, route.num_tokens * route.top_k * sizeof(float)}))
    return refuse_with(setup.rank, "combine: out overlaps topk_weights");
  if (overlap(out, y) || overlap(y, in))
    return refuse_with(setup.rank, "combine: norm.y overlaps {}",
                       overlap(out, y) ? "out" : "the rows");
  const struct {
    const char* name;
    const void* data;
  } terms[] = {{"bias 0", args.bias[0]},
               {"bias 1", args.bias[1]},
               {"shared_output", args.shared_output},
               {"norm.residual", args.norm.residual}};
  for (const auto& term : terms) {
    const bool same = term.data == args.out && out_pitch == out_row;
    if (!same && overlap(out, {term.data, dense}))
      return refuse_with(setup.rank, "combine: out overlaps {} without being the same", term.name);
    if (term.data != args.norm.y && overlap(y, {term.data, dense}))
      return refuse_with(setup.rank, "combine: norm.y overlaps {} without being the same",
                         term.name);
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
  return check_out(setup, args, route);
}

}  // namespace

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
