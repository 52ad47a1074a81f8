#include "plan/classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "ferry/status.h"

namespace ferry::internal {

namespace {

using Signature = std::vector<int>;

// Numbers for signatures, in the order in which they come.
class Numbers {
 public:
  int of(Signature signature) {
    return numbers_.try_emplace(std::move(signature), static_cast<int>(numbers_.size()))
        .first->second;
  }
  std::size_t count() const { return numbers_.size(); }

 private:
  std::map<Signature, int> numbers_;
};

// [cliques]: which colours meet there.
std::vector<int> clique_colours(const Graph::Cliques& cliques, const std::vector<int>& colours) {
  Numbers numbers;
  std::vector<int> found;
  for (const std::vector<int>& members : cliques.members) {
    Signature met;
    for (const int rank : members) met.push_back(colours[rank]);
    std::ranges::sort(met);
    found.push_back(numbers.of(std::move(met)));
  }
  return found;
}

std::size_t refine(const Graph& graph, std::vector<int>& colours) {
  std::vector<Signature> signatures(colours.size());
  for (std::size_t rank = 0; rank < colours.size(); ++rank) signatures[rank] = {colours[rank]};
  for (int kind = 0; kind < graph.num_kinds(); ++kind) {
    const Graph::Cliques& cliques = graph.cliques(kind);
    const std::vector<int> met = clique_colours(cliques, colours);
    for (int rank = 0; rank < graph.num_ranks(); ++rank) {
      Signature& signature = signatures[rank];
      signature.push_back(-1 - kind);
      if (!cliques.of.empty()) {
        signature.push_back(met[cliques.of[rank]]);
        continue;
      }
      const auto begin = std::ssize(signature);
      for (const int other : graph.neighbours(rank, kind)) signature.push_back(colours[other]);
      std::sort(signature.begin() + begin, signature.end());
    }
  }
  Numbers numbers;
  for (std::size_t rank = 0; rank < colours.size(); ++rank)
    colours[rank] = numbers.of(std::move(signatures[rank]));
  return numbers.count();
}

Classes from_colours(const std::vector<int>& colours) {
  Classes classes{.of = colours, .first = {}, .last = {}, .size = {}};
  for (int rank = 0; rank < std::ssize(colours); ++rank) {
    const int colour = colours[rank];
    if (colour == classes.count()) {
      classes.first.push_back(rank);
      classes.last.push_back(rank);
      classes.size.push_back(0);
    }
    classes.last[colour] = rank;
    ++classes.size[colour];
  }
  return classes;
}

}  // namespace

Classes each_alone(int num_ranks) {
  std::vector<int> colours(num_ranks);
  std::iota(colours.begin(), colours.end(), 0);
  return from_colours(colours);
}

void check_alone(const Classes& classes) {
  if (!classes.each_alone() || classes.count() <= kMostAlone) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} ranks that all differ; at most {} do: give each group as many ranks "
                          "and each rank as many experts",
                          classes.count(), kMostAlone));
}

Classes find_classes(const Graph& graph, const std::vector<int>& given) {
  if (!graph.even()) return each_alone(graph.num_ranks());
  std::vector<int> colours = given;
  for (std::size_t before = 0, now = 1; now > before;) {
    before = now;
    now = refine(graph, colours);
  }
  // Who serves whom in a tree is a matter of positions.
  const bool one = std::ranges::count(colours, 0) == std::ssize(colours);
  if (graph.num_kinds() == 0 && !one) return each_alone(graph.num_ranks());
  return from_colours(colours);
}

}  // namespace ferry::internal
