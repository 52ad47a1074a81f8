// What one token's result is the sum of, in the order of design 5: routed rows, copies and
// constants by k, rows of shared experts, the caller's shared output, the residual. Called by
// combine.cc.
#include "exchange/combine.h"
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
  prefetch_outputs(token + 1);
  const bool grouped = exchange_.forwarder && !exchange_.forwarder->exact();
  if (grouped) {
    add_subtrees(token, job);
  } else {
    find_rows(token, job.rows);
  }
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
    const float weight =
        args_.topk_weights && k < route.top_k ? args_.topk_weights[token * route.top_k + k] : 1.0f;
    add_special(token, special, {weight, job.sum});
  };
  for (int k = 0, row = 0; k < route.num_entries; ++k) {
    const RowRef ref = route.refs[first + k];
    if (ref.sent() && rows) job.rows.add_term(row++, job.sum);
    if (!ref.sent() && ref.member <= kFirstSpecial) add(k, kFirstSpecial - ref.member);
  }
  for (int k = 0; setup_.rank_major() && k < route.top_k; ++k) {
    const std::int32_t column = route.columns[first + k];
    if (column <= kFirstSpecial) add(k, kFirstSpecial - column);
  }
}

// All rows of a token, by entry. Those of other nodes have come side by side (NodeSums::kExact).
void Combine::find_rows(std::int64_t token, HomeRows& rows) const {
  const Route& route = *route_;
  const std::int64_t first = token * route.num_entries;
  rows.clear();
  std::array<HomeRows::Row*, kMaxEntries> of_entry;
  for (int k = 0; k < route.num_entries; ++k) {
    if (!route.refs[first + k].sent()) continue;
    of_entry[k] = &rows.add();
    find_row({token, k}, *of_entry[k]);
  }
  if (!exchange_.forwarder) return;
  const Subtrees subtrees = exchange_.subtrees_of(route, first, route.num_entries);
  for (int i = 0; i < subtrees.count(); ++i) {
    const std::byte* share = shares_[first_share_[token] + i];
    for (const std::int64_t entry : subtrees[i].items) {
      if (share == nullptr) break;
      HomeRows::Row& row = *of_entry[entry - first];
      row.parts[0] = share;
      row.num_parts = 1;
      row.encoded = setup_.combine_wire.encode != nullptr;
      share += rows.format().wire_bytes();
    }
  }
}

// Where the row of an entry lies in this node.
void Combine::find_row(TokenEntry at, HomeRows::Row& row) const {
  const Route& route = *route_;
  const ActiveSet& active = *route.active;
  const std::int64_t entry = at.token * route.num_entries + at.k;
  const int member = route.refs[entry].member;
  row.owner = member;
  row.weight = weight_of(at);
  row.num_parts = active.num_positions;
  for (int i = 0; i < active.num_positions; ++i) {
    const int position = active.position_from_mine(i);
    const PublishedRows& theirs = outputs_[active.index(member, position)];
    row.parts[i] = theirs.rows + setup_.row_at(route, entry, position) * theirs.pitch_bytes;
    row.encoded = theirs.encoded;
  }
}

// Sums instead of rows: those of other subtrees have come, that of my node is made here.
void Combine::add_subtrees(std::int64_t token, const ReduceJob& job) const {
  const Route& route = *route_;
  const DataType type = exchange_.forwarder->sum_type(args_.expert_rows.dtype);
  const std::int64_t first = token * route.num_entries;
  const Subtrees subtrees = exchange_.subtrees_of(route, first, route.num_entries);
  job.subtrees.clear();
  for (int i = 0; i < subtrees.count(); ++i) {
    const std::byte* share = shares_[first_share_[token] + i];
    if (share == nullptr) {
      job.rows.clear();
      for (const std::int64_t entry : subtrees[i].items)
        find_row({token, static_cast<int>(entry - first)}, job.rows.add());
      job.part.clear();
      job.rows.add_up(job.part, type, job.subtrees.own());
    }
    job.subtrees.add(subtrees[i].level, share ? share : job.subtrees.own());
  }
  job.subtrees.add_to(job.sum, exchange_.forwarder->table().outermost);
}

void Combine::prefetch_outputs(std::int64_t token) const noexcept {
  const Route& route = *route_;
  if (token >= route.num_tokens) return;
  const std::size_t row_bytes = dense_pitch(args_.expert_rows);
  for (int k = 0; k < route.num_entries; ++k) {
    const RowRef ref = route.refs[token * route.num_entries + k];
    if (!ref.sent()) continue;
    const PublishedRows& theirs = outputs_[route.active->index(ref.member, route.active->position)];
    prefetch_row(theirs.rows + ref.row * theirs.pitch_bytes, row_bytes);
  }
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
