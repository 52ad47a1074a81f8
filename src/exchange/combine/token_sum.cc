// What one token's result is the sum of, in the order of design 5: routed rows, copies and
// constants by k, rows of shared experts, the caller's shared output, the residual. Called by
// combine.cc.
#include "exchange/combine/combine.h"
#include "kernels/row_sums.h"

namespace ferry::internal {

// kRankMajor: rows of ranks, which weigh nothing. Shared experts have no weight.
float Combine::weight_of(TokenEntry at) const noexcept {
  if (args_.topk_weights == nullptr || setup_.rank_major() || at.k >= route_->top_k) return 1.0f;
  return args_.topk_weights[at.token * route_->top_k + at.k];
}

void Combine::collect_terms(std::int64_t token, const ReduceJob& job) const {
  const std::size_t out_row = args_.expert_rows.hidden * element_bytes(args_.out_dtype);
  const auto add_row_of = [&](const void* matrix) {
    if (matrix)
      job.sum.add(static_cast<const std::byte*>(matrix) + token * out_row, args_.out_dtype);
  };
  // A sum that is not rounded to the type of the biases takes them as terms.
  for (int i = 0; args_.norm.residual && i < 2; ++i) add_row_of(args_.bias[i]);
  const bool grouped = exchange_.ways.by_subtree();
  if (job.rows) find_rows(token, *job.rows);
  if (grouped) job.rows->add_to(job.sum, exchange_.ways.table().outermost);
  add_entries(token, job, !grouped);
  add_row_of(args_.shared_output);
  add_row_of(args_.norm.residual);
}

// Rows (unless they are in the sum as subtrees already) and special experts, by k; with kRankMajor
// rows by rank, then special experts by k.
void Combine::add_entries(std::int64_t token, const ReduceJob& job, bool rows) const {
  const Route& route = *route_;
  const std::int64_t first = token * route.num_entries;
  const auto add = [&](int k, int special) {
    const float weight = args_.topk_weights ? args_.topk_weights[token * route.top_k + k] : 1.0f;
    add_special(token, special, {weight, job.sum});
  };
  for (int k = 0; k < route.num_entries; ++k) {
    const RowRef ref = route.refs[first + k];
    if (ref.sent() && rows) add_row({token, k}, job);
    if (!ref.sent() && ref.member <= kFirstSpecial) add(k, kFirstSpecial - ref.member);
  }
  for (int k = 0; setup_.rank_major() && k < route.top_k; ++k) {
    const std::int32_t column = route.columns[first + k];
    if (column <= kFirstSpecial) add(k, kFirstSpecial - column);
  }
}

// Each row lies in this node as it is to be added: nothing has to be decoded or summed before.
bool Combine::rows_are_terms() const noexcept {
  return exchange_.ways.none() && route_->active->num_positions == 1 &&
         !setup_.combine_wire.encode && args_.partials == Partials::kNone;
}

void Combine::add_row(TokenEntry at, const ReduceJob& job) const {
  const std::int64_t entry = at.token * route_->num_entries + at.k;
  if (job.rows) return job.rows->add_term(entry, job.sum);
  job.sum.add(row_at_my_position(route_->refs[entry]), args_.expert_rows.dtype, weight_of(at));
}

// The rows of a token by entry, or between nodes the sums of its subtrees, of which my node is one.
void Combine::find_rows(std::int64_t token, RowSum& rows) const {
  const Route& route = *route_;
  const std::int64_t first = token * route.num_entries;
  rows.clear(first, route.num_entries);
  const auto find = [&](std::int64_t entry, RowSum::Row& row) {
    find_row({token, static_cast<int>(entry - first)}, row);
  };
  if (exchange_.ways.none()) {
    for (std::int64_t entry = first; entry < first + route.num_entries; ++entry) {
      if (route.refs[entry].sent()) find(entry, rows.row(entry));
    }
    return;
  }
  const Subtrees subtrees = exchange_.subtrees_of(route, first, route.num_entries);
  const auto answer = [&](int i) { return answer_of(token, i); };
  exchange_.ways.by_subtree() ? rows.set_sums(subtrees, find, answer)
                              : rows.set_rows(subtrees, find, answer);
}

// Where the row of an entry lies in this node.
void Combine::find_row(TokenEntry at, RowSum::Row& row) const {
  const Route& route = *route_;
  const ActiveSet& active = *route.active;
  const std::int64_t entry = at.token * route.num_entries + at.k;
  const int member = route.refs[entry].member;
  const int num_positions = active.num_positions;
  row.owner = member;
  row.weight = weight_of(at);
  row.num_parts = num_positions;
  for (int i = 0; i < num_positions; ++i) {
    const int position = active.position_from_mine(i);
    const PublishedRows& theirs = outputs_[active.index(member, position)];
    row.parts[i] = theirs.rows + setup_.row_at(route, entry, position) * theirs.pitch_bytes;
    row.encoded = theirs.encoded;
  }
}

void Combine::prefetch_outputs(std::int64_t token) const noexcept {
  const Route& route = *route_;
  const std::size_t row_bytes = dense_pitch(args_.expert_rows);
  for (int k = 0; k < route.num_entries; ++k) {
    const RowRef ref = route.refs[token * route.num_entries + k];
    if (ref.sent()) prefetch_row(row_at_my_position(ref), row_bytes);
  }
}

const std::byte* Combine::row_at_my_position(RowRef ref) const noexcept {
  const ActiveSet& active = *route_->active;
  const PublishedRows& theirs = outputs_[active.index(ref.member, active.position)];
  return theirs.rows + ref.row * theirs.pitch_bytes;
}

// Special expert `special` of zero, copy, constant experts in this order.
void Combine::add_special(std::int64_t token, int special, const SpecialTerm& term) const {
  const SpecialExperts& count = setup_.config.special;
  if (special < count.zero) return;
  const Rows& tokens = args_.dispatched->tokens;
  const std::byte* x = static_cast<const std::byte*>(tokens.data) + token * pitch_of(tokens);
  if (special < count.zero + count.copy) return term.sum.add(x, tokens.dtype, term.weight);
  const std::size_t offset = (special - count.zero - count.copy) * dense_pitch(tokens);
  const auto row_of = [&](const void* matrix) {
    return static_cast<const std::byte*>(matrix) + offset;
  };
  auto* made = reinterpret_cast<float*>(term.sum.scratch());
  constant_term({.x = x,
                 .alpha1 = row_of(args_.constants.alpha1),
                 .alpha2 = row_of(args_.constants.alpha2),
                 .v = row_of(args_.constants.v),
                 .type = tokens.dtype,
                 .hidden = tokens.hidden,
                 .out = made});
  term.sum.add(made, DataType::kFp32, term.weight);
}

}  // namespace ferry::internal
