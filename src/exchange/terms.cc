// What one token's result is the sum of, in the order of design 5: routed rows, copies and
// constants by k, rows of shared experts, the caller's shared output, the residual. Called by
// combine.cc.
#include "exchange/state.h"
#include "kernels/row_sums.h"

namespace ferry::internal {

namespace {

// Of entry k of a token; shared experts have none.
float weight_of(const CombineArgs& args, const Route& route, std::int64_t token, int k) {
  return args.topk_weights && k < route.top_k ? args.topk_weights[token * route.top_k + k] : 1.0f;
}

}  // namespace

void ExchangeState::collect_terms(const InFlight& operation, std::int64_t token,
                                  Summands& sum) const {
  const CombineArgs& args = operation.combine;
  const Route& route = *operation.route;
  const std::int64_t first = token * route.num_entries;
  const bool more = token + 1 < route.num_tokens;
  const std::size_t out_row = args.expert_rows.hidden * element_bytes(args.out_dtype);
  const auto add_row_of = [&](const void* matrix) {
    if (matrix) sum.add(static_cast<const std::byte*>(matrix) + token * out_row, args.out_dtype);
  };
  // A sum that is not rounded to the type of the biases takes them as terms.
  for (int i = 0; args.norm.residual && i < 2; ++i) add_row_of(args.bias[i]);
  const auto weight = [&](int k) { return weight_of(args, route, token, k); };
  for (int k = 0; k < route.num_entries; ++k) {
    if (more) prefetch_output(route, first + route.num_entries + k, args.expert_rows);
    const RowRef ref = route.refs[first + k];
    if (ref.sent() && args.partials == Partials::kPerRank) {
      add_partial(operation, token, k, sum);
    } else if (ref.sent()) {
      sum.add(returned_row(operation, first + k, sum), args.expert_rows.dtype,
              rank_major() ? 1.0f : weight(k));
    } else if (ref.member <= kFirstSpecial) {
      add_special(args, token, kFirstSpecial - ref.member, {weight(k), sum});
    }
  }
  for (int k = 0; rank_major() && k < route.top_k; ++k) {
    const std::int32_t column = route.columns[first + k];
    if (column <= kFirstSpecial) add_special(args, token, kFirstSpecial - column, {weight(k), sum});
  }
  add_row_of(args.shared_output);
  add_row_of(args.norm.residual);
}

// The terms of a rank come in the place of its highest k, as one row of the rows' type.
void ExchangeState::add_partial(const InFlight& operation, std::int64_t token, int k,
                                Summands& sum) const {
  const CombineArgs& args = operation.combine;
  const Route& route = *operation.route;
  const std::int64_t first = token * route.num_entries;
  const auto is_here = [&](int other) {
    return route.refs[first + other].member == route.refs[first + k].member;
  };
  for (int later = k + 1; later < route.num_entries; ++later) {
    if (is_here(later)) return;
  }
  const void* rows[kMaxTopK + kMaxSharedExperts];
  float weights[kMaxTopK + kMaxSharedExperts];
  int count = 0;
  for (int i = 0; i <= k; ++i) {
    if (!is_here(i)) continue;
    rows[count] = returned_row(operation, first + i, sum);
    weights[count++] = weight_of(args, route, token, i);
  }
  const DataType type = args.expert_rows.dtype;
  // One row as it is: added to +0 and rounded to its own type it stays what it was.
  if (count == 1 && weights[0] == 1.0f) return sum.add(rows[0], type);
  std::byte* partial = sum.scratch();
  reduce_rows({.rows = rows,
               .weights = args.topk_weights ? weights : nullptr,
               .num_rows = count,
               .row_type = type,
               .bias = {nullptr, nullptr},
               .out = partial,
               .out_type = type,
               .hidden = args.expert_rows.hidden,
               .stores = Stores::kCached});
  sum.add(partial, type);
}

void ExchangeState::prefetch_output(const Route& route, std::int64_t entry,
                                    const Rows& rows) const noexcept {
  const RowRef ref = route.refs[entry];
  if (!ref.sent()) return;
  const PublishedRows& theirs = outputs_[route.active->index(ref.member, route.active->position)];
  prefetch_row(theirs.rows + ref.row * theirs.pitch_bytes, dense_pitch(rows));
}

// A row as it comes home: those of all tensor-parallel positions added and rounded to their type,
// then through the wire format of combine.
const void* ExchangeState::returned_row(const InFlight& operation, std::int64_t entry,
                                        Summands& sum) const {
  const Route& route = *operation.route;
  const ActiveSet& active = *route.active;
  const Rows& rows = operation.combine.expert_rows;
  const int member = route.refs[entry].member;
  const auto at = [&](int position) {
    const PublishedRows& theirs = outputs_[active.index(member, position)];
    return theirs.rows + row_at(route, entry, position) * theirs.pitch_bytes;
  };
  const void* row = at(active.position);
  if (active.num_positions > 1) {
    const void* parts[kMaxPositions];
    for (int i = 0; i < active.num_positions; ++i)
      parts[i] = at((active.position + i) % active.num_positions);
    std::byte* total = sum.scratch();
    reduce_rows({.rows = parts,
                 .weights = nullptr,
                 .num_rows = active.num_positions,
                 .row_type = rows.dtype,
                 .bias = {nullptr, nullptr},
                 .out = total,
                 .out_type = rows.dtype,
                 .hidden = rows.hidden,
                 .stores = Stores::kCached});
    row = total;
  }
  if (!combine_wire_.encode) return row;
  if (!outputs_[active.index(member, active.position)].encoded) {
    std::byte* encoded = sum.encoded();
    combine_wire_.encode(
        {.row = row, .row_type = rows.dtype, .hidden = rows.hidden, .out = encoded});
    row = encoded;
  }
  std::byte* decoded = sum.scratch();
  combine_wire_.decode(
      {.encoded = row, .row_type = rows.dtype, .hidden = rows.hidden, .out = decoded});
  return decoded;
}

// Special expert `special` of zero, copy, constant experts in this order.
void ExchangeState::add_special(const CombineArgs& args, std::int64_t token, int special,
                                const SpecialTerm& term) const {
  const SpecialExperts& count = config_.special;
  if (special < count.zero) return;
  const Rows& tokens = args.dispatched->tokens;
  const std::byte* x = static_cast<const std::byte*>(tokens.data) + token * pitch_of(tokens);
  if (special < count.zero + count.copy) return term.sum.add(x, tokens.dtype, term.weight);
  const std::size_t offset = (special - count.zero - count.copy) * dense_pitch(tokens);
  const auto row_of = [&](const void* matrix) {
    return static_cast<const std::byte*>(matrix) + offset;
  };
  auto* made = reinterpret_cast<float*>(term.sum.scratch());
  constant_term({.x = x,
                 .alpha1 = row_of(args.constants.alpha1),
                 .alpha2 = row_of(args.constants.alpha2),
                 .v = row_of(args.constants.v),
                 .type = tokens.dtype,
                 .hidden = tokens.hidden,
                 .out = made});
  term.sum.add(made, DataType::kFp32, term.weight);
}

}  // namespace ferry::internal
