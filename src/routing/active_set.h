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
  int index(int member, int tp_rank) const noexcept { return tp_rank * num_members + member; }
  // The `i`-th of all tp_ranks, counted from mine: the order in which I add them up.
  int tp_rank_from_mine(int i) const noexcept {
    const int at = tp_rank + i;
    return at < tp_size ? at : at - tp_size;
  }
  int my_index() const noexcept { return index(member, tp_rank); }
  bool contains_me() const noexcept { return member >= 0; }
  bool all() const noexcept { return chosen.empty(); }

  std::vector<int> chosen;   // as the call named them; empty: all
  int num_members;           // sources of a domain
  int tp_size;               // tensor-parallel ranks, each a domain of its own
  int member;                // mine, -1: not among them
  int tp_rank;               // mine
  std::vector<int> ranks;    // [tp_size, members]
  std::vector<bool> waited;  // [all ranks]: takes part
  ExpertMap map;
  std::uint32_t digest;  // of the list, to compare
};

}  // namespace ferry::internal
