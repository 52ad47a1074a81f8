#include "exchange/combine/token_sum.h"

#include "kernels/row_sums.h"

namespace ferry::internal {

void TokenSum::reduce(std::span<const std::int32_t> tokens, Stores stores) const {
  const RowFormat format = call_.row_format();
  const Ways& ways = call_.exchange.ways;
  Summands sum(format.hidden, format.wire_bytes());
  RowSum rows(format, ways.sum_type(format.type), ways.num_levels());
  const Job job{sum, rows_are_summands() ? nullptr : &rows, stores};
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i + 1 < tokens.size()) prefetch(tokens[i + 1]);
    reduce_token(tokens[i], job);
  }
  if (stores == Stores::kStreaming) stores_fence();
}

void TokenSum::reduce_token(std::int64_t token, const Job& job) const {
  const CombineArgs& args = call_.args;
  const std::int64_t hidden = args.expert_rows.hidden;
  const std::size_t out_row = hidden * element_bytes(args.out_dtype);
  job.sum.clear();
  collect(token, job);
  const auto row_of = [&](const void* matrix) {
    return matrix ? static_cast<const std::byte*>(matrix) + token * out_row : nullptr;
  };
  std::byte* out = static_cast<std::byte*>(args.out) +
                   token * (args.out_pitch_bytes ? args.out_pitch_bytes : out_row);
  const bool norm = args.norm.residual != nullptr;
  float* sum = norm ? reinterpret_cast<float*>(job.sum.scratch()) : nullptr;
  job.sum.reduce(
      {.row_type = args.expert_rows.dtype,
       .bias = {norm ? nullptr : row_of(args.bias[0]), norm ? nullptr : row_of(args.bias[1])},
       .out = norm ? static_cast<void*>(sum) : out,
       .out_type = norm ? DataType::kFp32 : args.out_dtype,
       .hidden = hidden,
       .stores = norm ? Stores::kCached : job.stores},
      args.topk_weights != nullptr);
  if (!norm) return;
  float unused = 0;
  normalise_row({.z = sum,
                 .gamma = args.norm.gamma,
                 .epsilon = args.norm.epsilon,
                 .type = args.out_dtype,
                 .hidden = hidden,
                 .out = out,
                 .y = static_cast<std::byte*>(args.norm.y) + token * out_row,
                 .rstd = args.norm.rstd ? args.norm.rstd + token : &unused});
}

void TokenSum::collect(std::int64_t token, const Job& job) const {
  const CombineArgs& args = call_.args;
  const std::size_t out_row = args.expert_rows.hidden * element_bytes(args.out_dtype);
  const auto add_row_of = [&](const void* matrix) {
    if (matrix)
      job.sum.add(static_cast<const std::byte*>(matrix) + token * out_row, args.out_dtype);
  };
  // The biases come first in any case. Summands::reduce() takes biases of the type of its result.
  // With a residual norm the result is float32 and the biases are not, so they are summands here.
  for (int i = 0; args.norm.residual && i < 2; ++i) add_row_of(args.bias[i]);
  const bool by_subtree = job.rows && call_.exchange.ways.by_subtree();
  if (job.rows) find_rows(token, *job.rows);
  if (by_subtree) job.rows->add_to(job.sum, call_.exchange.ways.table().outermost);
  add_entries(token, job, !by_subtree);
  add_row_of(args.shared_output);
  add_row_of(args.norm.residual);
}

// Adds the rows of a token and its special experts, ordered by k. With kRankMajor it adds rows
// ordered by rank, then special experts ordered by k. `rows`: false if the sums of subtrees have
// the rows already.
void TokenSum::add_entries(std::int64_t token, const Job& job, bool rows) const {
  const Route& route = *call_.route;
  const std::int64_t first = token * route.num_entries;
  const auto add = [&](int k, int expert) {
    const float* const weights = call_.args.topk_weights;
    add_special({token, expert, weights ? weights[token * route.top_k + k] : 1.0f}, job.sum);
  };
  for (int k = 0; k < route.num_entries; ++k) {
    const RowRef ref = route.refs[first + k];
    if (ref.sent() && rows) add_row({token, k}, job);
    if (!ref.sent() && ref.member <= kFirstSpecial) add(k, kFirstSpecial - ref.member);
  }
  for (int k = 0; call_.setup.rank_major() && k < route.top_k; ++k) {
    const std::int32_t column = route.columns[first + k];
    if (column <= kFirstSpecial) add(k, kFirstSpecial - column);
  }
}

// Whether each row can be added as it lies in this node: nothing has to be decoded or summed first.
bool TokenSum::rows_are_summands() const noexcept {
  return call_.exchange.ways.none() && call_.active().tp_size == 1 &&
         !call_.setup.combine_wire.encode && call_.args.partials == Partials::kNone;
}

void TokenSum::add_row(TokenEntry at, const Job& job) const {
  const std::int64_t entry = call_.entry(at);
  if (job.rows) return job.rows->add_summand(entry, job.sum);
  job.sum.add(outputs_.row_of(call_.route->refs[entry]), call_.args.expert_rows.dtype,
              call_.weight_of(at));
}

// Sets the rows of a token, by entry. Between nodes it sets the sums of the token's subtrees, of
// which this node is one.
void TokenSum::find_rows(std::int64_t token, RowSum& rows) const {
  const Route& route = *call_.route;
  const Ways& ways = call_.exchange.ways;
  const std::int64_t first = token * route.num_entries;
  rows.clear(first, route.num_entries);
  const auto find = [&](std::int64_t entry, RowSum::Row& row) {
    find_row({token, static_cast<int>(entry - first)}, row);
  };
  if (ways.none()) {
    for (std::int64_t entry = first; entry < first + route.num_entries; ++entry) {
      if (route.refs[entry].sent()) find(entry, rows.row(entry));
    }
    return;
  }
  const Subtrees subtrees = call_.exchange.subtrees_of(route, first, route.num_entries);
  const auto reply = [&](int i) { return sums_.reply(token, i); };
  ways.by_subtree() ? rows.set_sums(subtrees, find, reply) : rows.set_rows(subtrees, find, reply);
}

// Finds the row of an entry in this node.
void TokenSum::find_row(TokenEntry at, RowSum::Row& row) const {
  const Route& route = *call_.route;
  const ActiveSet& active = *route.active;
  const std::int64_t entry = call_.entry(at);
  const int member = route.refs[entry].member;
  row.owner = member;
  row.weight = call_.weight_of(at);
  row.num_parts = active.tp_size;
  for (int i = 0; i < active.tp_size; ++i) {
    const int tp_rank = active.tp_rank_from_mine(i);
    const PublishedRows& theirs = outputs_.of(member, tp_rank);
    row.parts[i] = theirs.rows + call_.setup.row_at(route, entry, tp_rank) * theirs.pitch_bytes;
    row.encoded = theirs.encoded;
  }
}

void TokenSum::prefetch(std::int64_t token) const noexcept {
  const Route& route = *call_.route;
  const std::size_t row_bytes = dense_pitch(call_.args.expert_rows);
  for (int k = 0; k < route.num_entries; ++k) {
    const RowRef ref = route.refs[token * route.num_entries + k];
    if (ref.sent()) prefetch_row(outputs_.row_of(ref), row_bytes);
  }
}

void TokenSum::add_special(const Special& special, Summands& sum) const {
  const SpecialExperts& count = call_.setup.config.special;
  if (special.expert < count.zero) return;
  const Rows& tokens = call_.args.dispatched->tokens;
  const std::byte* x =
      static_cast<const std::byte*>(tokens.data) + special.token * pitch_of(tokens);
  const int constant = special.expert - count.zero - count.copy;
  if (constant < 0) return sum.add(x, tokens.dtype, special.weight);
  const std::size_t offset = constant * dense_pitch(tokens);
  const auto row_of = [&](const void* matrix) {
    return static_cast<const std::byte*>(matrix) + offset;
  };
  auto* made = reinterpret_cast<float*>(sum.scratch());
  constant_summand({.x = x,
                    .alpha1 = row_of(call_.args.constants.alpha1),
                    .alpha2 = row_of(call_.args.constants.alpha2),
                    .v = row_of(call_.args.constants.v),
                    .type = tokens.dtype,
                    .hidden = tokens.hidden,
                    .out = made});
  sum.add(made, DataType::kFp32, special.weight);
}

}  // namespace ferry::internal
