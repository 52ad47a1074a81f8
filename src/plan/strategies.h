// Strategies: the ways in which a machine can run an exchange.
#pragma once

#include <string>
#include <vector>

#include "plan/graph.h"
#include "traffic/tree_walk.h"

namespace ferry::internal {

// A share of the tokens, and the rule for the ways that they take.
struct TokenPath {
  Graph::WayRule rule;
  double share = 1;
};

struct Strategy {
  std::string name;
  TokenCopies copies = TokenCopies::kPerGroup;
  std::vector<TokenPath> paths = {};
};

std::vector<Strategy> strategies_of(const Graph& graph);

}  // namespace ferry::internal
