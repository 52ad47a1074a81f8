// Classes: ranks that look alike from everywhere, so that one of them stands for all. Called by
// build.h; calls graph.h.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/graph.h"

namespace ferry::internal {

struct Classes {
  std::vector<int> of;             // [ranks]
  std::vector<int> first, last;    // [classes]: their lowest and highest rank
  std::vector<std::int64_t> size;  // [classes]

  int count() const noexcept { return static_cast<int>(first.size()); }
  bool each_alone() const noexcept { return first.size() == of.size(); }
};

// Every rank is a class.
Classes each_alone(int num_ranks);

// Ranks joined by links that differ from each other, at most; check_alone() refuses more.
constexpr int kMostAlone = 4096;
void check_alone(const Classes& classes);

// Ranks of equal `colours` whose neighbours are, link by link, of the same classes.
Classes find_classes(const Graph& graph, const std::vector<int>& colours);

}  // namespace ferry::internal
