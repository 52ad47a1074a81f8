// Strategies: the ways of exchange that a machine can run.
#pragma once

#include <string>
#include <vector>

#include "plan/graph.h"
#include "traffic/tree_walk.h"

namespace ferry::internal {

// Some of the tokens go one way, some another: by which links, and which share of them.
struct TokenPath {
  std::vector<bool> closed = {};  // [kinds of links]: not taken
  double share = 1;
};

struct Strategy {
  std::string name;
  TokenCopies copies = TokenCopies::kPerGroup;
  std::vector<TokenPath> paths = {};
};

std::vector<Strategy> strategies_of(const Graph& graph);

}  // namespace ferry::internal
