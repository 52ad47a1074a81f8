// Roles: which ranks dispatch tokens and which own experts, and the parts of a segment that follow.
// A rank without experts receives no rows and has no window; a rank without tokens sends no rows
// and has no row lists (docs/attention_and_experts.md).
#pragma once

#include <span>
#include <vector>

#include "ferry/config.h"
#include "routing/expert_map.h"

namespace ferry::internal {

// Throws Error(kInvalidArgument) if token_ranks or expert_ranks are not distinct ranks of a domain
// of `domain_ranks`, or an owner of experts is not in expert_ranks.
void check_roles(const ExchangeConfig& config, int domain_ranks);

// Ranks of a domain that dispatch tokens.
int num_token_ranks(const ExchangeConfig& config, int domain_ranks);

// Where the windows and the row lists of ranks lie in the segment of their node. Segments of all
// nodes have the same size; a window or a list that no rank of a node has is address space only.
struct SegmentPlaces {
  // `node_of`: [ranks].
  SegmentPlaces(const ExchangeConfig& config, const ExpertMap& map, std::span<const int> node_of);

  bool receives(int rank) const noexcept { return windows[rank] >= 0; }
  bool sends(int rank) const noexcept { return row_lists[rank] >= 0; }

  std::vector<int> windows;    // [ranks] the index of its window; -1: it owns no experts
  std::vector<int> row_lists;  // [ranks] the index of its row lists; -1: it is no token rank
  // The most that a node has.
  int node_ranks = 0;
  int num_windows = 0;
  int num_row_lists = 0;
};

}  // namespace ferry::internal
