#include "plan/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ferry::internal {

namespace {

// The rate of one link, or that of its port if it is lower.
double rate_of(const Graph& graph, int kind) {
  const Machine::Link& link = graph.link(kind);
  double rate = link.gb_s;
  for (const Machine::Port& port : graph.machine().ports)
    if (port.name == link.port && port.gb_s > 0)
      rate = rate > 0 ? std::min(rate, port.gb_s) : port.gb_s;
  return rate;
}

// The kinds of links between the outermost groups that are not closed and lead to every rank
// without the others.
std::vector<int> kinds_out(const Graph& graph, const std::vector<bool>& closed) {
  const int outermost = graph.outermost(graph.kinds_inwards().front());
  std::vector<int> outermost_kinds, kinds;
  for (int kind = 0; kind < graph.num_kinds(); ++kind)
    if (!closed[kind] && graph.outermost(kind) == outermost) outermost_kinds.push_back(kind);
  for (const int kind : outermost_kinds) {
    std::vector<bool> others = closed;
    for (const int other : outermost_kinds) others[other] = other != kind;
    if (std::ssize(graph.ways(0, {.closed = others}).order) == graph.num_ranks())
      kinds.push_back(kind);
  }
  return kinds;
}

// The paths without the closed kinds of links. If two ways are equally long, the tokens are divided
// between them.
std::vector<TokenPath> paths(const Graph& graph, const std::vector<bool>& closed, double share) {
  std::vector<TokenPath> paths;
  for (const Graph::WayRule& rule : graph.dealt(closed)) paths.push_back({.rule = rule});
  for (TokenPath& path : paths) path.share = share / static_cast<double>(paths.size());
  return paths;
}

// The paths that use only one of `kinds`, all of which lead out of a group.
std::vector<TokenPath> only(const Graph& graph, int kind, const std::vector<int>& kinds,
                            std::vector<bool> closed, double share) {
  for (const int other : kinds) closed[other] = other != kind;
  return paths(graph, closed, share);
}

// Divides the tokens in proportion to the rates of the links.
std::vector<TokenPath> split_by_rate(const Graph& graph, const std::vector<bool>& closed) {
  const std::vector<int> kinds = kinds_out(graph, closed);
  double sum = 0;
  for (const int kind : kinds) sum += rate_of(graph, kind);
  std::vector<TokenPath> split;
  for (const int kind : kinds) {
    const double share =
        sum > 0 ? rate_of(graph, kind) / sum : 1.0 / static_cast<double>(kinds.size());
    for (TokenPath& path : only(graph, kind, kinds, closed, share))
      split.push_back(std::move(path));
  }
  return split;
}

// Whether the shortest ways take more than one of these kinds of links.
bool takes_several(const Graph& graph, const std::vector<int>& kinds,
                   const std::vector<bool>& closed) {
  std::vector<bool> taken(graph.num_kinds());
  for (const auto& hop : graph.ways(0, {.closed = closed}).reached)
    if (hop.kind >= 0) taken[hop.kind] = true;
  return std::ranges::count_if(kinds, [&](int kind) { return taken[kind]; }) > 1;
}

}  // namespace

std::vector<Strategy> strategies_of(const Graph& graph) {
  const std::vector<bool> per_rank = graph.closed_per_rank(), per_group = graph.closed_per_group();
  const std::vector<TokenPath> any = paths(graph, per_group, 1);
  std::vector<Strategy> all = {
      {.name = "fullmesh", .copies = TokenCopies::kPerRank, .paths = paths(graph, per_rank, 1)}};
  if (graph.num_kinds() == 0) {
    if (graph.tree().num_nodes() == 1) return all;
    all.insert(all.begin(),
               {.name = "hierarchical", .copies = TokenCopies::kPerGroup, .paths = any});
    all.push_back({.name = "allgather", .copies = TokenCopies::kAll, .paths = any});
    return all;
  }
  const std::vector<int> kinds = kinds_out(graph, per_group);
  if (kinds.size() < 2) {
    all.push_back({.name = "hierarchical", .copies = TokenCopies::kPerGroup, .paths = any});
  } else {
    for (const int kind : kinds) {
      all.push_back({.name = "hierarchical, " + graph.link(kind).name,
                     .copies = TokenCopies::kPerGroup,
                     .paths = only(graph, kind, kinds, per_group, 1)});
    }
    if (takes_several(graph, kinds, per_group))
      all.push_back({.name = "one way per group", .copies = TokenCopies::kPerGroup, .paths = any});
    all.push_back({.name = "split",
                   .copies = TokenCopies::kPerGroup,
                   .paths = split_by_rate(graph, per_group)});
    all.push_back({.name = "fullmesh, split",
                   .copies = TokenCopies::kPerRank,
                   .paths = split_by_rate(graph, per_rank)});
  }
  all.push_back({.name = "allgather", .copies = TokenCopies::kAll, .paths = any});
  return all;
}

}  // namespace ferry::internal
