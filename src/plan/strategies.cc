#include "plan/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace ferry::internal {

namespace {

// The rate of one link, which its port may slow down.
double rate_of(const Graph& graph, int kind) {
  const Machine::Link& link = graph.machine().links[kind];
  double rate = link.gb_s;
  for (const Machine::Port& port : graph.machine().ports)
    if (port.name == link.port && port.gb_s > 0)
      rate = rate > 0 ? std::min(rate, port.gb_s) : port.gb_s;
  return rate;
}

// Kinds of links that join the outermost groups, each of which alone leads everywhere.
std::vector<int> ways_out(const Graph& graph) {
  std::vector<int> ways;
  const int outermost = graph.outermost(graph.kinds_inwards().front());
  std::vector<int> outermost_kinds;
  for (int kind = 0; kind < graph.num_kinds(); ++kind)
    if (graph.outermost(kind) == outermost) outermost_kinds.push_back(kind);
  for (const int kind : outermost_kinds) {
    std::vector<bool> closed(graph.num_kinds());
    for (const int other : outermost_kinds) closed[other] = other != kind;
    if (std::ssize(graph.ways(0, closed).order) == graph.num_ranks()) ways.push_back(kind);
  }
  return ways;
}

Way only(const Graph& graph, int kind, const std::vector<int>& ways) {
  Way way{.closed = std::vector<bool>(graph.num_kinds())};
  for (const int other : ways) way.closed[other] = other != kind;
  return way;
}

// Tokens by the rates of the ways.
std::vector<Way> split_ways(const Graph& graph, const std::vector<int>& ways) {
  double sum = 0;
  for (const int kind : ways) sum += rate_of(graph, kind);
  std::vector<Way> split;
  for (const int kind : ways) {
    split.push_back(only(graph, kind, ways));
    split.back().share =
        sum > 0 ? rate_of(graph, kind) / sum : 1.0 / static_cast<double>(ways.size());
  }
  return split;
}

// Without a closed way, more than one of `ways` is taken.
bool takes_several(const Graph& graph, const std::vector<int>& ways) {
  std::vector<bool> taken(graph.num_kinds());
  for (const auto& hop : graph.ways(0, std::vector<bool>(graph.num_kinds())).reached)
    if (hop.kind >= 0) taken[hop.kind] = true;
  return std::ranges::count_if(ways, [&](int kind) { return taken[kind]; }) > 1;
}

}  // namespace

std::vector<Strategy> strategies_of(const Graph& graph) {
  const std::vector<Way> any = {{.closed = std::vector<bool>(graph.num_kinds())}};
  std::vector<Strategy> all = {{.name = "fullmesh", .copies = TokenCopies::kPerRank, .ways = any}};
  if (graph.num_kinds() == 0) {
    if (graph.tree().num_nodes() == 1) return all;
    all.insert(all.begin(),
               {.name = "hierarchical", .copies = TokenCopies::kPerGroup, .ways = any});
    all.push_back({.name = "allgather", .copies = TokenCopies::kAll, .ways = any});
    return all;
  }
  const std::vector<int> ways = ways_out(graph);
  if (ways.size() < 2) {
    all.push_back({.name = "hierarchical", .copies = TokenCopies::kPerGroup, .ways = any});
  } else {
    const std::vector<Way> split = split_ways(graph, ways);
    for (std::size_t i = 0; i < ways.size(); ++i) {
      all.push_back({.name = "hierarchical, " + graph.machine().links[ways[i]].name,
                     .copies = TokenCopies::kPerGroup,
                     .ways = {only(graph, ways[i], ways)}});
    }
    if (takes_several(graph, ways))
      all.push_back({.name = "one way per group", .copies = TokenCopies::kPerGroup, .ways = any});
    all.push_back({.name = "split", .copies = TokenCopies::kPerGroup, .ways = split});
    all.push_back({.name = "fullmesh, split", .copies = TokenCopies::kPerRank, .ways = split});
  }
  all.push_back({.name = "allgather", .copies = TokenCopies::kAll, .ways = any});
  return all;
}

}  // namespace ferry::internal
