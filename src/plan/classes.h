// Classes: sets of ranks that look equal from every rank. One rank then represents its class.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "plan/graph.h"
#include "plan/rank_traits.h"

namespace ferry::internal {

// Computes a number for each rank. Two ranks have equal numbers if their traits are equal and their
// links lead to ranks with equal numbers. Such numbers are called colours.
class Views {
 public:
  Views(const Graph& graph, RankTraits traits);

  // [ranks]: the colours of all ranks, which do not depend on a source.
  const Colours& colours() const noexcept { return traits_.colours; }
  // [ranks]: numbers of all ranks, as `rank` sees them. If two ranks of equal colours see equal
  // numbers, both reach the ranks with these numbers over equal links.
  const Colours& from(int rank);

 private:
  void refine(Colours& colours) const;
  Colours refined_once(const Colours& colours) const;

  const Graph& graph_;
  RankTraits traits_;
  std::map<int, Colours> from_;
};

struct Classes {
  std::vector<int> of;             // [ranks]
  std::vector<int> first, last;    // [classes]: the lowest and the highest rank
  std::vector<std::int64_t> size;  // [classes]
  std::shared_ptr<Views> views;    // null if each rank is a class

  int count() const noexcept { return static_cast<int>(first.size()); }
  bool each_alone() const noexcept { return first.size() == of.size(); }
  // The number of `to`, as `from` sees it.
  std::uint64_t seen(int from, int to) const { return views ? views->from(from)[to] : to; }
};

// Makes each rank a class of its own.
Classes each_alone(int num_ranks);

// The limit for ranks that are joined by links if each rank is a class. check_alone() refuses more.
constexpr int kMostAlone = 4096;
void check_alone(const Classes& classes);

// Puts ranks in one class if their traits are equal and, link by link, their neighbours are of the
// same classes.
Classes find_classes(const Graph& graph, const RankTraits& traits);

// Whether the ranks of each class reach equal ranks over equal ways. Checks every rank if there are
// up to 512 ranks, and every n-th rank if there are more.
bool have_equal_ways(const Graph& graph, const Classes& classes, const Graph::WayRule& rule);

}  // namespace ferry::internal
