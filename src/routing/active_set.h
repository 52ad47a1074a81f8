// ActiveSet: the ranks that take part in an operation, in the order that numbers them, and the
// owner of each expert among them. All ranks that take part have an equal set. A call that names no
// ranks has the set of the whole group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "routing/expert_map.h"

namespace ferry::internal {

struct ActiveSet {
  // Throws Error(kInvalidArgument) when the list is not one of distinct ranks, or the configuration
  // does not fit the list. An empty list stands for all ranks.
  ActiveSet(const ExchangeConfig& config, int num_ranks, int rank, std::span<const int> active);

  // Index of a rank in `ranks`.
  int index(int member, int tp_rank) const noexcept { return tp_rank * num_members + member; }
  // The `i`-th of all tp_ranks, counted cyclically from that of this rank. This rank adds rows in
  // this order.
  int tp_rank_from_mine(int i) const noexcept {
    const int at = tp_rank + i;
    return at < tp_size ? at : at - tp_size;
  }
  int my_index() const noexcept { return index(member, tp_rank); }
  bool contains_me() const noexcept { return member >= 0; }
  bool all() const noexcept { return chosen.empty(); }

  std::vector<int> chosen;   // the ranks that the call named; empty: all
  int num_members;           // ranks of each domain that take part
  int tp_size;               // number of tp_ranks; the ranks of one tp_rank are a domain
  int member;                // the member that is this rank; -1: it does not take part
  int tp_rank;               // tp_rank of this rank
  std::vector<int> ranks;    // [tp_size, members]
  std::vector<bool> waited;  // [all ranks]: takes part
  ExpertMap map;
  std::uint32_t digest;  // digest of `chosen`, which ranks compare

 private:
  void check(int num_ranks, int rank) const;
};

}  // namespace ferry::internal
