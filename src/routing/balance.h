// Balance: which experts get copies, and on which ranks copies go, by their loads: the steps of
// EPLB, for one layer, with its results. Pure functions. Called by ferry.placement
// (python/core/balance.cc) and tools/bench.
#pragma once

#include <span>
#include <vector>

namespace ferry::internal {

// For each item its pack, and which one it is in there.
struct Packed {
  std::vector<int> pack, position;
};
// As many items to each pack, the heaviest first, each to the lightest pack that has room. Throws
// Error(kInvalidArgument) when num_packs does not divide the items.
Packed pack_evenly(std::span<const float> weights, int num_packs);

// For each slot the expert that it holds, and which of its copies.
struct Copies {
  std::vector<int> expert, copy;
};
// Each copy beyond the first ones goes to the expert that then has the largest load per copy.
// Throws Error(kInvalidArgument) for fewer slots than experts.
Copies replicate(std::span<const float> loads, int num_slots);

struct BalanceShape {
  int num_slots = 0;   // of all ranks
  int num_groups = 1;  // of experts that stay within a node; ignored unless num_nodes divides it
  int num_nodes = 1;
  int num_ranks = 1;
};
// Slots rank by rank. Throws Error(kInvalidArgument) for counts that do not divide.
Copies balance(std::span<const float> loads, BalanceShape shape);

}  // namespace ferry::internal
