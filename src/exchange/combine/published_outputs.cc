#include "exchange/combine/published_outputs.h"

#include <algorithm>

#include "base/check.h"

namespace ferry::internal {

void PublishedOutputs::find_all() {
  const std::vector<int>& ranks = call_.active().ranks;
  outputs_.resize(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (call_.exchange.here(ranks[i])) outputs_[i] = of_rank(ranks[i]);
}

bool PublishedOutputs::find_more() {
  const std::vector<int>& ranks = call_.active().ranks;
  outputs_.resize(ranks.size());
  bool more = false;
  for (std::size_t i = 0; i < ranks.size() && !mismatch_; ++i) {
    if (outputs_[i].rows || !call_.exchange.protocol.delivered(call_.issued, ranks[i])) continue;
    mismatch_ = !makes_this_call(ranks[i]);
    if (mismatch_) return false;  // the rank may have departed without a record of this combine
    outputs_[i] = of_rank(ranks[i]);
    more = true;
  }
  return more;
}

// Whether `rank` makes the same call as this rank, so that its rows lie where the route says. The
// records have not been examined yet. If row weights are to return, a rank that gives none does not
// make the same call.
bool PublishedOutputs::makes_this_call(int rank) const noexcept {
  const Agreed weights = call_.exchange.record(rank, call_.number()).terms.weights;
  return call_.exchange.protocol.agrees_with_me(call_.issued, rank) &&
         (!call_.args.out_topk_weights || weights != Agreed::kNo);
}

PublishedRows PublishedOutputs::of_rank(int rank) const {
  const Record& theirs = call_.exchange.record(rank, call_.number());
  const Published& rows = theirs.published;
  FERRY_CHECK(theirs.number, ==, call_.number());
  FERRY_CHECK(rows.rows_offset, >=, 0);
  FERRY_CHECK(rows.weights_offset, >=, 0);
  const WindowView& view = call_.exchange.view;
  // A rank without a window has no rows: the address only says that the rank has published, and is
  // not read.
  const std::byte* window = view.has_window(rank) ? view.window(rank) : view.segment->data();
  return {window + rows.rows_offset, rows.pitch_bytes,
          reinterpret_cast<const float*>(window + rows.weights_offset), theirs.encoded};
}

bool PublishedOutputs::are_here(std::int64_t token) const noexcept {
  const Route& route = *call_.route;
  const RowRef* const refs = route.refs.data() + token * route.num_entries;
  return std::all_of(refs, refs + route.num_entries, [this](RowRef ref) {
    bool here = true;
    for (int tp_rank = 0; ref.sent() && tp_rank < call_.active().tp_size; ++tp_rank)
      here = here && of(ref.member, tp_rank).rows;
    return here;
  });
}

}  // namespace ferry::internal
