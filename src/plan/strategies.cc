#include "plan/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ferry::internal {

namespace {

// The rate of one link, or of its port if that is lower.
double rate_of(const Graph& graph, int kind) {
  const Machine::Link& link = graph.machine().links[kind];
  double rate = link.gb_s;
  for (const Machine::Port& port : graph.machine().ports)
    if (port.name == link.port && port.gb_s > 0)
      rate = rate > 0 ? std::min(rate, port.gb_s) : port.gb_s;
  return rate;
}

// The kinds of links between the outermost groups that each lead to every rank without the others.
std::vector<int> kinds_out(const Graph& graph) {
  std::vector<int> kinds;
  const int outermost = graph.outermost(graph.kinds_inwards().front());
  std::vector<int> outermost_kinds;
  for (int kind = 0; kind < graph.num_kinds(); ++kind)
    if (graph.outermost(kind) == outermost) outermost_kinds.push_back(kind);
  for (const int kind : outermost_kinds) {
    std::vector<bool> closed(graph.num_kinds());
    for (const int other : outermost_kinds) closed[other] = other != kind;
    if (std::ssize(graph.ways(0, {.closed = closed}).order) == graph.num_ranks())
      kinds.push_back(kind);
  }
  return kinds;
}

// The ways without these kinds of links. Tokens are dealt out where two ways are equally long.
std::vector<TokenPath> paths(const Graph& graph, const std::vector<bool>& closed, double share) {
  std::vector<TokenPath> paths;
  for (const Graph::WayRule& rule : graph.dealt(closed)) paths.push_back({.rule = rule});
  for (TokenPath& path : paths) path.share = share / static_cast<double>(paths.size());
  return paths;
}

std::vector<TokenPath> only(const Graph& graph, int kind, const std::vector<int>& kinds,
                            double share) {
  std::vector<bool> closed(graph.num_kinds());
  for (const int other : kinds) closed[other] = other != kind;
  return paths(graph, closed, share);
}

// Splits the tokens in proportion to the rates of the links.
std::vector<TokenPath> split_by_rate(const Graph& graph, const std::vector<int>& kinds) {
  double sum = 0;
  for (const int kind : kinds) sum += rate_of(graph, kind);
  std::vector<TokenPath> split;
  for (const int kind : kinds) {
    const double share =
        sum > 0 ? rate_of(graph, kind) / sum : 1.0 / static_cast<double>(kinds.size());
    for (TokenPath& path : only(graph, kind, kinds, share)) split.push_back(std::move(path));
  }
  return split;
}

// Whether shortest ways take more than one of these kinds of links.
bool takes_several(const Graph& graph, const std::vector<int>& kinds) {
  std::vector<bool> taken(graph.num_kinds());
  for (const auto& hop : graph.ways(0, {.closed = std::vector<bool>(graph.num_kinds())}).reached)
    if (hop.kind >= 0) taken[hop.kind] = true;
  return std::ranges::count_if(kinds, [&](int kind) { return taken[kind]; }) > 1;
}

}  // namespace

std::vector<Strategy> strategies_of(const Graph& graph) {
  const std::vector<TokenPath> any = paths(graph, std::vector<bool>(graph.num_kinds()), 1);
  std::vector<Strategy> all = {{.name = "fullmesh", .copies = TokenCopies::kPerRank, .paths = any}};
  if (graph.num_kinds() == 0) {
    if (graph.tree().num_nodes() == 1) return all;
    all.insert(all.begin(),
               {.name = "hierarchical", .copies = TokenCopies::kPerGroup, .paths = any});
    all.push_back({.name = "allgather", .copies = TokenCopies::kAll, .paths = any});
    return all;
  }
  const std::vector<int> kinds = kinds_out(graph);
  if (kinds.size() < 2) {
    all.push_back({.name = "hierarchical", .copies = TokenCopies::kPerGroup, .paths = any});
  } else {
    const std::vector<TokenPath> split = split_by_rate(graph, kinds);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      all.push_back({.name = "hierarchical, " + graph.machine().links[kinds[i]].name,
                     .copies = TokenCopies::kPerGroup,
                     .paths = only(graph, kinds[i], kinds, 1)});
    }
    if (takes_several(graph, kinds))
      all.push_back({.name = "one way per group", .copies = TokenCopies::kPerGroup, .paths = any});
    all.push_back({.name = "split", .copies = TokenCopies::kPerGroup, .paths = split});
    all.push_back({.name = "fullmesh, split", .copies = TokenCopies::kPerRank, .paths = split});
  }
  all.push_back({.name = "allgather", .copies = TokenCopies::kAll, .paths = any});
  return all;
}

}  // namespace ferry::internal
