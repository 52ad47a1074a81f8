// Classes: ranks that look equal from everywhere, so that one of them stands for all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "plan/graph.h"
#include "plan/rank_traits.h"

namespace ferry::internal {

// How ranks look: two have equal numbers if they are equal, and links lead from them to equal
// ranks.
class Views {
 public:
  Views(const Graph& graph, RankTraits traits);

  // Wherever one looks from.
  const Colours& colours() const noexcept { return traits_.colours; }
  // [ranks]. Seen from `rank`; equal numbers seen from two ranks of equal colours are at
  // equal places to them.
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
  std::vector<int> first, last;    // [classes]: their lowest and highest rank
  std::vector<std::int64_t> size;  // [classes]
  std::shared_ptr<Views> views;    // none where each rank is alone

  int count() const noexcept { return static_cast<int>(first.size()); }
  bool each_alone() const noexcept { return first.size() == of.size(); }
  // How `to` looks from `from`.
  std::uint64_t seen(int from, int to) const { return views ? views->from(from)[to] : to; }
};

// Every rank is a class.
Classes each_alone(int num_ranks);

// Ranks joined by links that differ from each other, at most; check_alone() refuses more.
constexpr int kMostAlone = 4096;
void check_alone(const Classes& classes);

// Ranks of equal traits whose neighbours are, link by link, of the same classes.
Classes find_classes(const Graph& graph, const RankTraits& traits);

// Whether the ranks of each class reach what looks equal over equal ways: checks every rank of up
// to 512, every n-th of more.
bool have_equal_ways(const Graph& graph, const Classes& classes, const std::vector<bool>& closed);

}  // namespace ferry::internal
