// Tokens that are reduced while outputs or sums of some ranks are still missing: on one node those
// whose rows all lie at ranks that have published theirs, between nodes those whose sums have all
// come. Part of Combine; called by the waits of its receive half.
#include <algorithm>
#include <functional>

#include "exchange/combine/combine.h"

namespace ferry::internal {

namespace {

// A pass over fewer than one in so many tokens is not worth its walk out of order. So there are no
// more passes than that.
constexpr std::int64_t kFewest = 16;

}  // namespace

// Not between nodes, where sums of other nodes are waited for next; nor without a handle, when the
// counts of all ranks say where rows are.
Status Combine::await_outputs() {
  const std::function<std::int64_t()> meanwhile = [this] { return reduce_early(); };
  const bool early = exchange_.ways.none() && !unplaced_;
  return exchange_.protocol.await(
      issued(), "outputs", Stage::kDelivered,
      {.wait_ns = &times.wait_ns, .meanwhile = early ? &meanwhile : nullptr});
}

// One look for more outputs. Returns the nanoseconds that it reduced tokens.
std::int64_t Combine::reduce_early() {
  if (in_vain_ || !find_more_outputs()) return 0;
  find_ready(&Combine::rows_are_here, route_->num_tokens);
  return reduce_ready("outputs");
}

// One look for more sums. Returns the nanoseconds that it reduced tokens: not many at once, as
// other ranks may wait for sums that this one makes.
std::int64_t Combine::reduce_summed() {
  find_ready(&Combine::sums_are_here, (route_->num_tokens + kFewest - 1) / kFewest);
  return reduce_ready("sums");
}

// The first tokens, at most so many, of those that are left.
void Combine::find_ready(bool (Combine::*is_ready)(std::int64_t) const noexcept,
                         std::int64_t most) {
  TokenLists& tokens = exchange_.tokens;
  tokens.ready.clear();
  for (const std::int32_t token : tokens.left) {
    if (std::ssize(tokens.ready) == most) return;
    if ((this->*is_ready)(token)) tokens.ready.push_back(token);
  }
}

// Reduces what find_ready() found, unless it is too little. `wait`: the phase that goes on then.
std::int64_t Combine::reduce_ready(const char* wait) {
  TokenLists& tokens = exchange_.tokens;
  if (tokens.ready.empty() || std::ssize(tokens.ready) * kFewest < route_->num_tokens) return 0;
  begin_phase("reduce");
  reduce_tokens(tokens.ready);
  // Both lists ascend. What is ready is not asked again: more may be, since it was looked for.
  auto next = tokens.ready.cbegin();
  std::erase_if(tokens.left, [&](std::int32_t token) {
    const bool reduced = next != tokens.ready.cend() && *next == token;
    if (reduced) ++next;
    return reduced;
  });
  begin_phase(wait);
  const OperationTimes::Span& reduced = times.spans.end()[-2];
  return reduced.end_ns - reduced.begin_ns;
}

// Whether any rank has published its outputs since the last look.
bool Combine::find_more_outputs() {
  bool more = false;
  for (std::size_t i = 0; i < outputs_.size() && !in_vain_; ++i) {
    const int peer = active().ranks[i];
    if (outputs_[i].rows || !exchange_.protocol.delivered(issued(), peer)) continue;
    in_vain_ = !makes_my_call(peer);
    outputs_[i] = outputs_of(peer);
    more = true;
  }
  return more && !in_vain_;
}

// Only then its rows are where mine would be: examine() has not looked at any record yet. Weights
// that are to return may be missing on all ranks alike.
bool Combine::makes_my_call(int peer) const noexcept {
  const Agreed weights = exchange_.record(peer, number()).terms.weights;
  return exchange_.protocol.agrees_with_me(issued(), peer) &&
         (!args_.out_topk_weights || weights != Agreed::kNo);
}

bool Combine::rows_are_here(std::int64_t token) const noexcept {
  const RowRef* const refs = route_->refs.data() + token * route_->num_entries;
  return std::all_of(refs, refs + route_->num_entries, [this](RowRef ref) {
    bool here = true;
    for (int position = 0; ref.sent() && position < active().num_positions; ++position)
      here = here && outputs_[active().index(ref.member, position)].rows;
    return here;
  });
}

bool Combine::sums_are_here(std::int64_t token) const noexcept {
  const auto [first, end] = subtrees_[token];
  for (std::size_t subtree = first; subtree < end; ++subtree) {
    if (!asked_of(token).has_come(subtree)) return false;
  }
  return true;
}

}  // namespace ferry::internal
