#include "plan/classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "ferry/status.h"
#include "plan/hash.h"

namespace ferry::internal {

namespace {

std::size_t count_different(Colours colours) {
  std::ranges::sort(colours);
  return std::unique(colours.begin(), colours.end()) - colours.begin();
}

// Adds to the sum of each rank a hash of the colours in its group. Each grouping has another
// `salt`.
void add_groups(const std::vector<int>& group_of, const Colours& colours, std::uint64_t salt,
                Colours& sums) {
  Colours met(1 + std::ranges::max(group_of));
  for (std::size_t rank = 0; rank < colours.size(); ++rank)
    met[group_of[rank]] += mixed(colours[rank]);
  for (std::size_t rank = 0; rank < colours.size(); ++rank)
    sums[rank] += mixed(met[group_of[rank]] + salt);
}

Classes from_colours(const Colours& colours) {
  Classes classes{
      .of = std::vector<int>(colours.size()), .first = {}, .last = {}, .size = {}, .views = {}};
  std::map<std::uint64_t, int> numbers;
  for (int rank = 0; rank < std::ssize(colours); ++rank) {
    const auto [found, is_new] = numbers.try_emplace(colours[rank], classes.count());
    const int number = classes.of[rank] = found->second;
    if (is_new) {
      classes.first.push_back(rank);
      classes.last.push_back(rank);
      classes.size.push_back(0);
    }
    classes.last[number] = rank;
    ++classes.size[number];
  }
  return classes;
}

// A hash of the ways from one rank. For each rank that it sees, the hash includes the link of the
// last hop and the rank before it.
std::uint64_t seen_ways(const Graph& graph, const Classes& classes, int source,
                        const Graph::WayRule& rule) {
  const Graph::Ways ways = graph.ways(source, rule);
  const Colours& seen = classes.views->from(source);
  std::uint64_t sum = 0;
  for (const int rank : ways.order) {
    const auto& [from, kind, depth] = ways.reached[rank];
    const std::uint64_t before = from < 0 ? 0 : seen[from];
    sum += mixed(seen[rank] + mixed(before + mixed(kind + 1)));
  }
  return sum;
}

}  // namespace

Classes each_alone(int num_ranks) {
  Colours colours(num_ranks);
  std::iota(colours.begin(), colours.end(), 0);
  return from_colours(colours);
}

void check_alone(const Classes& classes) {
  if (!classes.each_alone() || classes.count() <= kMostAlone) return;
  throw Error(
      Code::kInvalidArgument,
      fmt::format("{} ranks that all differ, at most {}: give all groups equally many ranks "
                  "and all ranks equally many experts",
                  classes.count(), kMostAlone));
}

Classes find_classes(const Graph& graph, const RankTraits& traits) {
  if (!graph.even()) return each_alone(graph.num_ranks());
  auto views = std::make_shared<Views>(graph, traits);
  Classes classes = from_colours(views->colours());
  // In a tree, the position of a rank in its group decides which ranks it serves. So ranks of one
  // class would differ.
  if (graph.num_kinds() == 0 && classes.count() > 1) return each_alone(graph.num_ranks());
  if (!classes.each_alone()) classes.views = std::move(views);
  return classes;
}

bool have_equal_ways(const Graph& graph, const Classes& classes, const Graph::WayRule& rule) {
  if (classes.each_alone()) return true;
  // For each class, the hash of the first of its ranks that was checked.
  std::map<int, std::uint64_t> ways_of;
  const auto same = [&](int rank) {
    const std::uint64_t ways = seen_ways(graph, classes, rank, rule);
    return ways_of.try_emplace(classes.of[rank], ways).first->second == ways;
  };
  for (int rank = 0; rank < graph.num_ranks(); rank += graph.look_step())
    if (!same(rank)) return false;
  return std::ranges::all_of(classes.first, same) && std::ranges::all_of(classes.last, same);
}

Views::Views(const Graph& graph, RankTraits traits) : graph_(graph), traits_(std::move(traits)) {
  for (int level = 0; level < graph.tree().num_levels(); ++level) {
    traits_.groups.push_back(graph.groups(level));
    traits_.groups.push_back(graph.sharers(level));
  }
  for (int kind = 0; kind < graph.num_kinds(); ++kind)
    if (!graph.cliques(kind).of.empty()) traits_.groups.push_back(graph.cliques(kind).of);
  refine(traits_.colours);
}

const Colours& Views::from(int rank) {
  const auto [found, is_new] = from_.try_emplace(rank, traits_.colours);
  if (is_new) {
    // refine() alone would find the distances, too. But in a ring it would need as many rounds as
    // there are ranks.
    const Graph::Ways ways = graph_.ways(rank, {.closed = std::vector<bool>(graph_.num_kinds())});
    for (int other = 0; other < graph_.num_ranks(); ++other)
      found->second[other] += mixed(ways.reached[other].depth);
    refine(found->second);
  }
  return found->second;
}

// Refines the colours until ranks of equal colours have neighbours of equal colours.
void Views::refine(Colours& colours) const {
  for (std::size_t before = 0, now = 1; now > before;) {
    before = now;
    colours = refined_once(colours);
    now = count_different(colours);
  }
}

Colours Views::refined_once(const Colours& colours) const {
  Colours sums(colours.size());
  for (std::size_t rank = 0; rank < colours.size(); ++rank) sums[rank] = mixed(colours[rank]);
  std::uint64_t salt = 0;
  for (const std::vector<int>& group_of : traits_.groups)
    add_groups(group_of, colours, mixed(++salt), sums);
  for (int kind = 0; kind < graph_.num_kinds(); ++kind) {
    ++salt;
    if (!graph_.cliques(kind).of.empty()) continue;
    for (int rank = 0; rank < graph_.num_ranks(); ++rank) {
      std::uint64_t met = 0;
      for (const int other : graph_.joined(rank, kind))
        met += mixed(colours[other] + graph_.turn(rank, other, kind));
      sums[rank] += mixed(met + mixed(salt));
    }
  }
  return sums;
}

}  // namespace ferry::internal
