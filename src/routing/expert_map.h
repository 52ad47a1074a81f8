// ExpertMap: which rank owns which expert. Pure data, equal on all ranks.
// Made once per exchange; read by placement, memory layout and the argument checks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ferry/exchange.h"

namespace ferry::internal {

class ExpertMap {
 public:
  // Throws Error(kInvalidArgument) when an owner is outside [0, num_ranks) or the list has the
  // wrong length.
  ExpertMap(const ExchangeConfig& config, int num_ranks);

  int num_experts() const noexcept { return static_cast<int>(owner_.size()); }
  int num_ranks() const noexcept { return static_cast<int>(first_.size()) - 1; }
  int owner(int expert) const noexcept { return owner_[expert]; }
  int local(int expert) const noexcept { return local_[expert]; }
  int num_local(int rank) const noexcept { return first_[rank + 1] - first_[rank]; }
  int max_num_local() const noexcept;

  // The experts of `rank`, in the order of their local index (ascending ids).
  std::span<const std::int32_t> experts_of(int rank) const noexcept {
    return std::span(by_rank_).subspan(first_[rank], num_local(rank));
  }

 private:
  std::vector<std::int32_t> owner_;    // [E]
  std::vector<std::int32_t> local_;    // [E]
  std::vector<std::int32_t> first_;    // [R + 1] into by_rank_
  std::vector<std::int32_t> by_rank_;  // [E]
};

}  // namespace ferry::internal
