// CombineCall: the values of one combine that all its parts read: the arguments, and the route with
// the places of the rows of each token.
#pragma once

#include <cstdint>
#include <memory>

#include "exchange/parts/parts.h"
#include "exchange/protocol/protocol.h"
#include "exchange/sums/row_sum.h"
#include "ferry/exchange.h"
#include "routing/route.h"

namespace ferry::internal {

// Entry k of a token: one of its top-k experts, or a shared expert behind them. With kRankMajor it
// is one of the ranks to which the token was sent.
struct TokenEntry {
  std::int64_t token;
  int k;
};

struct CombineCall {
  ExchangeParts& exchange;
  const Setup& setup;
  const Issued& issued;
  CombineArgs args;
  std::shared_ptr<const Route> route = {};
  bool slots_are_known = true;  // false: before the counts of all ranks are here

  const ActiveSet& active() const noexcept { return *issued.active; }
  std::uint64_t number() const noexcept { return issued.number; }

  std::int64_t entry(TokenEntry at) const noexcept { return at.token * route->num_entries + at.k; }
  // With kRankMajor the rank of the experts has weighted the rows, so their weight is 1 here, as is
  // that of shared experts.
  float weight_of(TokenEntry at) const noexcept {
    const bool weighed = args.topk_weights && !setup.rank_major() && at.k < route->top_k;
    return weighed ? args.topk_weights[at.token * route->top_k + at.k] : 1.0f;
  }
  RowFormat row_format() const {
    return {.wire = &setup.combine_wire,
            .type = args.expert_rows.dtype,
            .hidden = args.expert_rows.hidden,
            .partials = args.partials,
            .weighted = args.topk_weights != nullptr};
  }
};

}  // namespace ferry::internal
