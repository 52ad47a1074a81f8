#include "plan/routes.h"
#include "topology/mate.h"

#include <algorithm>

namespace ferry::internal {

std::vector<Hop> Routes::of(int source, const Strategy& strategy, const Way& way) const {
  std::vector<Hop> hops = graph_.num_kinds() > 0 ? over_links(source, strategy, way)
                                                 : over_tree(source, strategy.copies);
  for (Hop& hop : hops) hop.dispatch_bytes *= way.share, hop.combine_bytes *= way.share;
  return hops;
}

// The shortest ways to all ranks form a tree. Whoever is on the way of others passes on.
std::vector<Hop> Routes::over_links(int source, const Strategy& strategy, const Way& way) const {
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
  return hops;
}

// As the engine walks it: over mates of every level down to the nodes, then by stores. With
// kPerRank straight to each node, whose mate stores.
std::vector<Hop> Routes::over_tree(int source, Copies copies) const {
  const Topology& tree = graph_.tree();
  std::vector<Hop> hops;
  if (copies == Copies::kPerRank) {
    for (int node = 0; node < tree.num_nodes(); ++node) {
      if (node == tree.node_of(source)) continue;
      const int mate = tree.mate(source, node);
      hops.push_back({.from = source, .to = mate});
      set_bytes(hops.back(), tree.node_ranks(node), copies);
      store(mate, static_cast<int>(hops.size()) - 1, hops);
    }
    store(source, -1, hops);
    return hops;
  }
  serve(source, 0, -1, copies, hops);
  return hops;
}

// What `holder` has for its group of the level above goes to the siblings of its group here, and on
// inside its own.
void Routes::serve(int holder, int level, int hop, Copies copies, std::vector<Hop>& hops) const {
  const Topology& tree = graph_.tree();
  if (level > tree.find_level(Topology::kHost)) {
    store(holder, hop, hops);
    return;
  }
  const int own = tree.group_of(holder, level);
  const std::span<const int> inside = tree.members(own, level);
  const auto position = std::ranges::find(inside, holder) - inside.begin();
  int end = 0, begin = 0;
  for (const int siblings : tree.level(level).fanout) {
    begin = end;
    end += siblings;
    if (own < end) break;
  }
  for (int group = begin; group < end; ++group) {
    if (group == own) continue;
    const std::span<const int> ranks = tree.members(group, level);
    const int mate = ranks[mate_position(position, ranks.size())];
    hops.push_back({.from = holder, .to = mate, .parent = hop});
    set_bytes(hops.back(), ranks, copies);
    serve(mate, level + 1, static_cast<int>(hops.size()) - 1, copies, hops);
  }
  serve(holder, level + 1, hop, copies, hops);
}

// Inside a node every row is written where it belongs.
void Routes::store(int holder, int hop, std::vector<Hop>& hops) const {
  const double tokens = static_cast<double>(traffic_.tokens);
  for (const int rank : graph_.tree().node_ranks(graph_.tree().node_of(holder))) {
    if (rank == holder) continue;
    const Routing::Ranks own = routing_.of(rank);
    const double rows = traffic_.row_per_rank ? routing_.touched(own) : routing_.rows(own);
    hops.push_back({.from = holder,
                    .to = rank,
                    .parent = hop,
                    .dispatch_bytes = tokens * traffic_.row_bytes * rows,
                    .combine_bytes = tokens * traffic_.output_bytes * rows});
  }
}

void Routes::set_bytes(Hop& hop, std::span<const int> ranks, Copies copies) const {
  const double tokens = static_cast<double>(traffic_.tokens);
  const Routing::Ranks all = set_of(ranks);
  double touched = 0, rows = 0;
  for (const int rank : ranks) {
    const Routing::Ranks own = routing_.of(rank);
    if (copies == Copies::kPerRank) touched += routing_.touched(own);
    rows += traffic_.row_per_rank ? routing_.touched(own) : routing_.rows(own);
  }
  if (copies != Copies::kPerRank) touched = routing_.touched(all);
  const double sent = copies == Copies::kAll ? 1 : touched;
  hop.dispatch_bytes = tokens * traffic_.row_bytes * sent;
  hop.combine_bytes = traffic_.exact ? tokens * traffic_.output_bytes * rows
                                     : tokens * traffic_.sum_bytes * touched;
}

Routing::Ranks Routes::set_of(std::span<const int> ranks) const {
  Routing::Ranks set;
  for (const int rank : ranks) routing_.add(set, routing_.of(rank));
  return set;
}

}  // namespace ferry::internal
