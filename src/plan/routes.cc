#include "plan/routes.h"

namespace ferry::internal {

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
  const double tokens = static_cast<double>(traffic_.tokens);
  const bool group = strategy.copies == Copies::kPerGroup;
  std::vector<Routing::Ranks> behind(hops.size());
  std::vector<double> copies(hops.size());  // kPerRank
  for (std::size_t i = hops.size(); i-- > 0;) {
    Hop& hop = hops[i];
    const Routing::Ranks own = routing_.of(hop.to);
    if (group || traffic_.exact) routing_.add(behind[i], own);
    copies[i] += strategy.copies == Copies::kPerRank ? routing_.touched(own) : 0;
    double copies_out = copies[i];
    if (group) copies_out = routing_.touched(behind[i]);
    if (strategy.copies == Copies::kAll) copies_out = 1;
    hop.dispatch_bytes = tokens * traffic_.row_bytes * copies_out;
    hop.combine_bytes = traffic_.exact ? tokens * traffic_.output_bytes * routing_.rows(behind[i])
                                       : tokens * traffic_.sum_bytes * copies_out;
    if (hop.parent < 0) continue;
    routing_.add(behind[hop.parent], behind[i]);
    copies[hop.parent] += copies[i];
  }
  for (Hop& hop : hops) hop.dispatch_bytes *= way.share, hop.combine_bytes *= way.share;
  return hops;
}

}  // namespace ferry::internal
