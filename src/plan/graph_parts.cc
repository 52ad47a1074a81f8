// Makes the parts of meshes (Graph::add_parts), and chooses between a mesh and its parts.
#include <algorithm>
#include <utility>

#include "plan/graph.h"

namespace ferry::internal {

std::vector<bool> Graph::closed_per_rank() const {
  std::vector<bool> closed;
  for (int kind = 0; kind < num_kinds(); ++kind) closed.push_back(is_part(kind));
  return closed;
}

std::vector<bool> Graph::closed_per_group() const {
  std::vector<bool> closed;
  for (const Kind& kind : kinds_) closed.push_back(kind.has_parts);
  return closed;
}

// The levels whose groups a mesh enters and leaves over a resource that the ranks of a group share:
// a port or the links of the level. The result also has the levels inside whose groups other links
// join the ranks, so that a rank can pass a token on. The outermost level comes first.
std::vector<int> Graph::entered_levels(int kind) const {
  const Machine::Link& link = machine_.links[kind];
  std::vector<int> entered_levels;
  if (link.shape != Machine::Shape::kMesh) return entered_levels;
  const int outer = find_level(tree(), link);
  const int outer_groups = outer < 0 ? 1 : tree().level(outer).num_groups();
  for (int level = outer + 1; level < tree().num_levels(); ++level) {
    const Topology::Level& at = tree().level(level);
    if (at.num_groups() == outer_groups || at.num_groups() == num_ranks()) continue;
    bool shared = at.link.total_gb_s() > 0;
    for (const Machine::Port& port : machine_.ports)
      shared = shared || (port.name == link.port && port.level == at.name);
    for (std::size_t i = 0; i < machine_.links.size(); ++i)
      shared = shared || kinds_[i].outermost == level + 1;
    if (shared) entered_levels.push_back(level);
  }
  return entered_levels;
}

void Graph::add_parts(int kind) {
  const std::vector<int> levels = entered_levels(kind);
  if (levels.empty()) return;
  kinds_[kind].has_parts = true;
  const auto add = [&](Kind part) {
    part.link = kind;
    part.outermost = outermost_crossed(part);
    kinds_.push_back(std::move(part));
  };
  int outer = find_level(tree(), machine_.links[kind]);
  for (const int level : levels) {
    add(mates(outer, level));
    outer = level;
  }
  Kind inside;
  inside.cliques.members = groups_of(tree(), outer);
  number(inside.cliques);
  add(std::move(inside));
}

// Joins ranks at the same position of groups of a level, inside each group of level `outer`. If
// groups have different sizes, the position is taken modulo the size of the other group, as for
// mates in a tree.
Graph::Kind Graph::mates(int outer, int level) const {
  Kind kind;
  const std::vector<std::vector<int>> inner = groups_of(tree(), level);
  const bool equal = std::ranges::all_of(
      inner, [&](const std::vector<int>& ranks) { return ranks.size() == inner[0].size(); });
  if (!equal) kind.joined.resize(num_ranks());
  for (const std::vector<int>& ranks : groups_of(tree(), outer)) {
    const int begin = groups_[level][ranks.front()], end = groups_[level][ranks.back()] + 1;
    if (equal) {
      const std::size_t first = kind.cliques.members.size();
      kind.cliques.members.resize(first + inner[begin].size());
      for (int group = begin; group < end; ++group)
        for (std::size_t position = 0; position < inner[group].size(); ++position)
          kind.cliques.members[first + position].push_back(inner[group][position]);
      continue;
    }
    for (const int rank : ranks) {
      const int group = groups_[level][rank], position = rank - inner[group].front();
      for (int other = begin; other < end; ++other)
        if (other != group)
          kind.joined[rank].push_back(inner[other][position % inner[other].size()]);
    }
  }
  if (equal) number(kind.cliques);
  return kind;
}

}  // namespace ferry::internal
