// Classes: sets of ranks that look equal from every rank, so that one rank represents its class.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "plan/graph.h"
#include "plan/rank_traits.h"

namespace ferry::internal {

// The views of ranks, as numbers. Two ranks have equal numbers if their traits are equal and links
// lead from them to ranks with equal numbers.
class Views {
 public:
  Views(const Graph& graph, RankTraits traits);

  // [ranks]. Independent of the rank that looks.
  const Colours& colours() const noexcept { return traits_.colours; }
  // [ranks]. Seen from `rank`: if two ranks of equal colours see equal numbers, the ranks with
  // these numbers are reached from both over equal links.
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
  std::shared_ptr<Views> views;    // null where each rank is a class

  int count() const noexcept { return static_cast<int>(first.size()); }
  bool each_alone() const noexcept { return first.size() == of.size(); }
  // The number of `to`, seen from `from`.
  std::uint64_t seen(int from, int to) const { return views ? views->from(from)[to] : to; }
};

// Makes every rank a class.
Classes each_alone(int num_ranks);

// The most ranks joined by links where every rank is a class; check_alone() refuses more.
constexpr int kMostAlone = 4096;
void check_alone(const Classes& classes);

// Puts ranks in one class if their traits are equal and their neighbours are, link by link, of the
// same classes.
Classes find_classes(const Graph& graph, const RankTraits& traits);

// Whether the ranks of each class reach equal ranks over equal ways. Checks every rank of up to 512
// ranks, and every n-th rank of more.
bool have_equal_ways(const Graph& graph, const Classes& classes, const Graph::WayRule& rule);

}  // namespace ferry::internal
