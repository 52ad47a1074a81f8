#include "plan/routes.h"

namespace ferry::internal {

PairBytes hop_bytes(const Traffic& traffic, TokenCopies copies, const Routing::Wanted& wanted) {
  const auto tokens = static_cast<double>(traffic.tokens);
  double out = 1;
  if (copies == TokenCopies::kPerRank) out = wanted.touched_alone;
  if (copies == TokenCopies::kPerGroup) out = wanted.touched;
  return {.dispatch = tokens * traffic.row_bytes * out,
          .combine = traffic.exact ? tokens * traffic.output_bytes * wanted.rows
                                   : tokens * traffic.sum_bytes * out};
}

// The shortest ways to all ranks form a tree. Whoever is on the way of others passes on.
std::vector<Hop> Routes::of(int source, const Strategy& strategy, const Way& way) const {
  const Graph::Ways ways = graph_.ways(source, way.closed);
  std::vector<int> hop_of(graph_.num_ranks(), -1);
  std::vector<Hop> hops;
  for (const int rank : ways.order) {
    const auto [from, kind, depth] = ways.reached[rank];
    if (from < 0) continue;
    hop_of[rank] = static_cast<int>(hops.size());
    hops.push_back({.from = from, .to = rank, .kind = kind, .parent = hop_of[from]});
  }
  std::vector<Routing::Ranks> behind(hops.size());
  std::vector<Routing::Wanted> wanted(hops.size());
  for (std::size_t i = hops.size(); i-- > 0;) {
    Hop& hop = hops[i];
    const Routing::Ranks own = routing_.of(hop.to);
    routing_.add(behind[i], own);
    if (strategy.copies == TokenCopies::kPerRank) wanted[i].touched_alone += routing_.touched(own);
    if (strategy.copies == TokenCopies::kPerGroup) wanted[i].touched = routing_.touched(behind[i]);
    if (traffic_.exact) wanted[i].rows = routing_.rows(behind[i]);
    const PairBytes bytes = hop_bytes(traffic_, strategy.copies, wanted[i]);
    hop.dispatch_bytes = bytes.dispatch;
    hop.combine_bytes = bytes.combine;
    if (hop.parent < 0) continue;
    routing_.add(behind[hop.parent], behind[i]);
    wanted[hop.parent].touched_alone += wanted[i].touched_alone;
  }
  for (Hop& hop : hops) hop.dispatch_bytes *= way.share, hop.combine_bytes *= way.share;
  return hops;
}

}  // namespace ferry::internal
