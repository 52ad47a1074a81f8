// Which arrays of a combine may share memory. Several threads reduce the tokens, in any order, so
// an input of one token may be read after the result of another one was written.
#include "exchange/arguments/argument_rules.h"
#include "exchange/arguments/refusal.h"

namespace ferry::internal {

namespace {

// Indices of arrays_written().
enum Written : unsigned { kOut, kY, kRstd, kTopkWeights };

struct Input {
  Array array;
  unsigned replaced_by = 0;  // bit i: arrays_written()[i] may be exactly the same memory
};

bool overlap(const Array& a, const Array& b) {
  const auto first = reinterpret_cast<std::uintptr_t>(a.data),
             second = reinterpret_cast<std::uintptr_t>(b.data);
  return a.data && b.data && first < second + b.bytes && second < first + a.bytes && a.bytes > 0 &&
         b.bytes > 0;
}

std::int64_t out_row_bytes(const CombineArgs& args) {
  return args.expert_rows.hidden * static_cast<std::int64_t>(element_bytes(args.out_dtype));
}

std::int64_t out_pitch(const CombineArgs& args) {
  return args.out_pitch_bytes ? args.out_pitch_bytes : out_row_bytes(args);
}

// The inputs that are read while results are written. Each element of an input that has exactly the
// memory of a result is read before it is written.
std::array<Input, 11> inputs_of(const Setup& setup, const CombineArgs& args, const Route& route) {
  constexpr unsigned kRows = 1U << kOut | 1U << kY;
  const std::size_t row = out_row_bytes(args), dense = route.num_tokens * row;
  const std::size_t weights = route.num_tokens * route.top_k * sizeof(float);
  const bool special = reads_tokens(setup, route);
  const Rows tokens = special ? args.dispatched->tokens : Rows{};
  const ConstantExperts constants = special ? args.constants : ConstantExperts{};
  const std::size_t constant = setup.config.special.constant * dense_pitch(tokens);
  const bool same_rows =
      pitch_of(tokens) == out_pitch(args) && dense_pitch(tokens) == out_row_bytes(args);
  return {{{{"the expert rows", args.expert_rows.data, extent_of(args.expert_rows)}},
           {{"topk_weights", args.topk_weights, weights}, 1U << kTopkWeights},
           {{"bias 0", args.bias[0], dense}, kRows},
           {{"bias 1", args.bias[1], dense}, kRows},
           {{"shared_output", args.shared_output, dense}, kRows},
           {{"norm.residual", args.norm.residual, dense}, kRows},
           {{"norm.gamma", args.norm.gamma, row}},
           {{"dispatched->tokens", tokens.data, extent_of(tokens)}, same_rows ? 1U << kOut : 0},
           {{"constants.alpha1", constants.alpha1, constant}},
           {{"constants.alpha2", constants.alpha2, constant}},
           {{"constants.v", constants.v, constant}}}};
}

}  // namespace

std::array<Array, 4> arrays_written(const CombineArgs& args, const Route& route) {
  const std::size_t tokens = route.num_tokens, row = out_row_bytes(args);
  return {Array{"out", args.out, tokens == 0 ? 0 : (tokens - 1) * out_pitch(args) + row},
          Array{"norm.y", args.norm.y, tokens * row},
          Array{"norm.rstd", args.norm.rstd, tokens * sizeof(float)},
          Array{"out_topk_weights", args.out_topk_weights, tokens * route.top_k * sizeof(float)}};
}

Status check_overlaps(const Setup& setup, const CombineArgs& args, const Route& route) {
  const std::array<Array, 4> written = arrays_written(args, route);
  const std::array<Input, 11> inputs = inputs_of(setup, args, route);
  for (unsigned i = 0; i < written.size(); ++i) {
    for (unsigned other = 0; other < i; ++other) {
      if (overlap(written[i], written[other]))
        return refuse_with(setup.rank, "combine: {} overlaps {}", written[i].name,
                           written[other].name);
    }
    for (const auto& [input, replaced_by] : inputs) {
      const bool may_replace = (replaced_by >> i & 1U) != 0;
      const bool same = written[i].data == input.data && written[i].bytes == input.bytes;
      if (overlap(written[i], input) && !(may_replace && same))
        return refuse_with(setup.rank, "combine: {} overlaps {}{}", written[i].name, input.name,
                           may_replace ? " without being the same" : "");
    }
  }
  return {};
}

}  // namespace ferry::internal
