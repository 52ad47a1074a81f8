#include "plan/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/names.h"
#include "ferry/status.h"
#include "topology/level_names.h"

namespace ferry::internal {

namespace {

using Shape = Machine::Shape;

[[noreturn]] void refuse_link(const Machine::Link& link, const std::string& what) {
  refuse_line(link.line, fmt::format("link '{}': {}", link.name, what));
}

}  // namespace

int find_level(const Topology& tree, const Machine::Link& link) {
  if (link.level.empty()) return -1;
  const int level = tree.find_level(link.level);
  if (level >= 0) return level;
  refuse_link(link, fmt::format("there is no level '{}'{}", link.level,
                                nearest_name(link.level, level_names(tree))));
}

namespace {

bool is_even(const Topology& tree) {
  for (int i = 0; i < tree.num_levels(); ++i) {
    const Topology::Level& level = tree.level(i);
    const int size = level.first[1] - level.first[0];
    if (std::ranges::count(level.fanout, level.fanout[0]) != std::ssize(level.fanout)) return false;
    if (size % level.link.count != 0 && size > level.link.count) return false;
  }
  return true;
}

[[noreturn]] void refuse_end(const Machine::Link& link, const std::array<int, 2>& pair, int size) {
  const auto [a, b] = pair;
  refuse_link(link, link.shape == Shape::kXor
                        ? fmt::format("position {} xor {} is {}, but a group has {} ranks", a,
                                      link.mask, b, size)
                        : fmt::format("pair {}-{}: position {} is not in [0, {})", a, b,
                                      a < 0 || a >= size ? a : b, size));
}

}  // namespace

std::vector<std::vector<int>> groups_of(const Topology& tree, int level) {
  std::vector<std::vector<int>> groups;
  if (level < 0) {
    groups.emplace_back(tree.num_ranks());
    std::iota(groups[0].begin(), groups[0].end(), 0);
    return groups;
  }
  for (int group = 0; group < tree.level(level).num_groups(); ++group) {
    const auto ranks = tree.members(group, level);
    groups.emplace_back(ranks.begin(), ranks.end());
  }
  return groups;
}

std::vector<std::array<int, 2>> joined_pairs(const Machine::Link& link, int size) {
  if (link.shape != Shape::kXor) return link.pairs;
  std::vector<std::array<int, 2>> pairs;
  for (int i = 0; i < size; ++i)
    if (i < (i ^ link.mask)) pairs.push_back({i, i ^ link.mask});
  return pairs;
}

Graph::Graph(const Machine& machine)
    : machine_(machine), kinds_(machine.links.size()), even_(is_even(machine.tree)) {
  for (int level = 0; level < tree().num_levels(); ++level) {
    groups_.emplace_back(num_ranks());
    sharers_.emplace_back(num_ranks());
    for (int rank = 0, shared = -1; rank < num_ranks(); ++rank) {
      groups_[level][rank] = tree().group_of(rank, level);
      const bool with_last = rank > 0 && groups_[level][rank] == groups_[level][rank - 1] &&
                             tree().link_of(rank, level) == tree().link_of(rank - 1, level);
      sharers_[level][rank] = with_last ? shared : ++shared;
    }
  }
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    kinds_[i].link = static_cast<int>(i);
    make(machine_.links[i], kinds_[i]);
    kinds_[i].outermost = outermost_crossed(kinds_[i]);
  }
  for (std::size_t i = 0; i < machine.links.size(); ++i) add_parts(static_cast<int>(i));
  inwards_.resize(kinds_.size());
  std::iota(inwards_.begin(), inwards_.end(), 0);
  // Inside a group, other links come before links that also lead out of the group.
  std::ranges::stable_sort(
      inwards_, {}, [&](int kind) { return std::pair(kinds_[kind].outermost, !is_part(kind)); });
  if (num_kinds() > 0) check_connected();
}

void Graph::make(const Machine::Link& link, Kind& kind) const {
  if (link.shape == Shape::kMesh || link.shape == Shape::kIndex)
    make_cliques(link, kind);
  else
    make_joined(link, kind);
}

int Graph::outermost_crossed(const Kind& kind) const {
  int outermost = tree().num_levels();
  const auto cross = [&](int a, int b) { outermost = std::min(outermost, outermost_parted(a, b)); };
  for (const std::vector<int>& members : kind.cliques.members)
    if (members.size() > 1) cross(members.front(), members.back());
  for (std::size_t rank = 0; rank < kind.joined.size(); ++rank)
    for (const int other : kind.joined[rank]) cross(static_cast<int>(rank), other);
  return outermost;
}

void Graph::make_cliques(const Machine::Link& link, Kind& kind) const {
  const int level = find_level(tree(), link);
  if (link.shape == Shape::kMesh) {
    kind.cliques.members = groups_of(tree(), level);
  } else {
    if (level < 0) refuse_link(link, "index needs a level, such as 'index host'");
    int end = 0;
    for (const int siblings : tree().level(level).fanout) {
      const int begin = end;
      end += siblings;
      const std::size_t first = kind.cliques.members.size();
      for (int group = begin; group < end; ++group) {
        const auto ranks = tree().members(group, level);
        if (kind.cliques.members.size() < first + ranks.size())
          kind.cliques.members.resize(first + ranks.size());
        for (std::size_t i = 0; i < ranks.size(); ++i)
          kind.cliques.members[first + i].push_back(ranks[i]);
      }
    }
  }
  number(kind.cliques);
}

void Graph::number(Cliques& cliques) const {
  cliques.of.assign(num_ranks(), -1);
  for (std::size_t clique = 0; clique < cliques.members.size(); ++clique)
    for (const int rank : cliques.members[clique]) cliques.of[rank] = static_cast<int>(clique);
}

void Graph::join(const Machine::Link& link, Kind& kind, int a, int b) const {
  if (a == b) refuse_link(link, fmt::format("rank {} is joined to itself", a));
  if (std::ranges::count(kind.joined[a], b) > 0)
    refuse_link(
        link, fmt::format("ranks {} and {} are joined twice; a second link needs a name of its own",
                          a, b));
  kind.joined[a].push_back(b);
  kind.joined[b].push_back(a);
}

void Graph::make_joined(const Machine::Link& link, Kind& kind) const {
  kind.joined.resize(num_ranks());
  if (link.shape == Shape::kRing) kind.next.assign(num_ranks(), -1);
  for (const std::vector<int>& ranks : groups_of(tree(), find_level(tree(), link))) {
    const int size = static_cast<int>(ranks.size());
    if (link.shape == Shape::kRing) {
      if (size < 2) continue;
      for (int i = 0; i < size; ++i) {
        kind.next[ranks[i]] = ranks[(i + 1) % size];
        if (size > 2 || i == 0) join(link, kind, ranks[i], ranks[(i + 1) % size]);
      }
      // All ranks have one order, so that the ranks of a ring are of one class.
      for (const int rank : ranks)
        if (kind.joined[rank].front() != kind.next[rank]) std::ranges::reverse(kind.joined[rank]);
    } else {
      if (link.shape == Shape::kXor && link.mask < 1)
        refuse_link(link, fmt::format("xor {} joins no ranks; at least 1", link.mask));
      for (const std::array<int, 2>& pair : joined_pairs(link, size)) {
        if (std::ranges::min(pair) < 0 || std::ranges::max(pair) >= size)
          refuse_end(link, pair, size);
        join(link, kind, ranks[pair[0]], ranks[pair[1]]);
      }
    }
  }
}

std::vector<int> Graph::neighbours(int rank, int kind) const {
  const Kind& made = kinds_[kind];
  if (made.cliques.of.empty()) return made.joined[rank];
  std::vector<int> others = made.cliques.members[made.cliques.of[rank]];
  std::erase(others, rank);
  return others;
}

int Graph::turn(int from, int to, int kind) const {
  const std::vector<int>& next = kinds_[kind].next;
  return next.empty() || next[from] == to ? 0 : 1;
}

// Finds the ways layer by layer. If hops over several kinds lead to a rank, the innermost kind is
// taken, so that a rank that received a copy passes it on in its group. With rule.last each kind is
// searched from the last rank to the first, and the ranks that it found are reversed for the next
// layer.
Graph::Ways Graph::ways(int source, const WayRule& rule) const {
  Ways ways{
      .reached = std::vector<Reached>(num_ranks(), Reached{.from = -1, .kind = -1, .depth = -1}),
      .order = {source}};
  ways.order.reserve(num_ranks());
  ways.reached[source].depth = 0;
  std::vector<std::vector<bool>> seen(kinds_.size());
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind)
    seen[kind].resize(kinds_[kind].cliques.members.size());
  for (std::size_t begin = 0, end = 1; begin < end; begin = end, end = ways.order.size()) {
    for (auto kind = inwards_.rbegin(); kind != inwards_.rend(); ++kind) {
      if (rule.closed[*kind]) continue;
      const auto found = std::ssize(ways.order);
      for (std::size_t i = begin; i < end && std::ssize(ways.order) < num_ranks(); ++i)
        reach_from(ways.order[rule.last ? begin + end - 1 - i : i], *kind, rule.last, seen[*kind],
                   ways);
      if (rule.last) std::reverse(ways.order.begin() + found, ways.order.end());
    }
  }
  return ways;
}

// Adds the neighbours that were not reached before. A clique is searched once, because after that
// all of its ranks are reached.
void Graph::reach_from(int from, int kind, bool last, std::vector<bool>& seen, Ways& ways) const {
  const Kind& made = kinds_[kind];
  const Reached next{.from = from, .kind = kind, .depth = ways.reached[from].depth + 1};
  const auto reach = [&](int to) {
    if (ways.reached[to].depth >= 0) return;
    ways.reached[to] = next;
    ways.order.push_back(to);
  };
  const bool joined = made.cliques.of.empty();
  const int clique = joined ? -1 : made.cliques.of[from];
  if (!joined && seen[clique]) return;
  if (!joined) seen[clique] = true;
  const std::vector<int>& ranks = joined ? made.joined[from] : made.cliques.members[clique];
  if (last)
    std::for_each(ranks.rbegin(), ranks.rend(), reach);
  else
    std::ranges::for_each(ranks, reach);
}

int Graph::look_step() const noexcept {
  // The limit for ranks that are checked times ranks that are seen.
  constexpr std::int64_t kLooks = 1 << 18;
  return static_cast<int>(
      std::max<std::int64_t>(1, std::int64_t{num_ranks()} * num_ranks() / kLooks));
}

std::vector<Graph::WayRule> Graph::dealt(const std::vector<bool>& closed) const {
  const WayRule first{.closed = closed}, last{.closed = closed, .last = true};
  for (int source = 0; source < num_ranks(); source += look_step())
    if (ways(source, first).reached != ways(source, last).reached) return {first, last};
  return {first};
}

void Graph::check_connected() const {
  const Ways all = ways(0, {.closed = std::vector<bool>(kinds_.size())});
  for (int rank = 0; rank < num_ranks(); ++rank) {
    if (all.reached[rank].depth < 0)
      throw Error(Code::kInvalidArgument,
                  fmt::format("machine: no way over links leads from rank 0 to rank {}", rank));
  }
}

}  // namespace ferry::internal
