// ActiveSet: the ranks that take part in an operation, in the order that numbers them, and who owns
// which expert among them. Equal on all of them. The whole group unless a call says otherwise.
// Made by exchange/setup/setup.cc; a Route keeps the one it was made with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "routing/expert_map.h"

namespace ferry::internal {

struct ActiveSet {
  // Throws Error(kInvalidArgument) when the list is not one of distinct ranks, or the configuration
  // does not fit it. Empty: all ranks.
  ActiveSet(const ExchangeConfig& config, int num_ranks, int rank, std::span<const int> active);

  // Index of a rank in `ranks`.
  int index(int member, int position) const noexcept { return position * num_members + member; }
  // The `i`-th of all positions, counted from mine: the order in which I add them up.
  int position_from_mine(int i) const noexcept {
    const int at = position + i;
    return at < num_positions ? at : at - num_positions;
  }
  int my_index() const noexcept { return index(member, position); }
  bool contains_me() const noexcept { return member >= 0; }
  bool all() const noexcept { return chosen.empty(); }

  std::vector<int> chosen;   // as the call named them; empty: all
  int num_members;           // sources of a domain
  int num_positions;         // tensor-parallel positions, each a domain of its own
  int member;                // mine, -1: not among them
  int position;              // mine
  std::vector<int> ranks;    // [positions, members]
  std::vector<bool> waited;  // [all ranks]: takes part
  ExpertMap map;
  std::uint32_t digest;  // of the list, to compare
};

}  // namespace ferry::internal
