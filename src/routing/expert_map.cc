#include "routing/expert_map.h"

#include <fmt/format.h>

#include <algorithm>

namespace ferry::internal {

namespace {

// Contiguous blocks, as even as can be: the first E mod R ranks own one more.
std::vector<std::int32_t> contiguous_owners(int num_experts, int num_ranks) {
  std::vector<std::int32_t> owner;
  owner.reserve(num_experts);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int block = num_experts / num_ranks + (rank < num_experts % num_ranks ? 1 : 0);
    owner.insert(owner.end(), block, rank);
  }
  return owner;
}

}  // namespace

ExpertMap::ExpertMap(const ExchangeConfig& config, int num_ranks)
    : owner_(config.expert_rank.begin(), config.expert_rank.end()) {
  if (owner_.empty()) owner_ = contiguous_owners(config.num_experts, num_ranks);
  if (static_cast<int>(owner_.size()) != config.num_experts) {
    throw Error(Code::kInvalidArgument,
                fmt::format("expert_rank names the owner of {} experts, num_experts is {}",
                            owner_.size(), config.num_experts));
  }
  first_.assign(num_ranks + 1, 0);
  for (int expert = 0; expert < config.num_experts; ++expert) {
    if (owner_[expert] < 0 || owner_[expert] >= num_ranks) {
      throw Error(Code::kInvalidArgument, fmt::format("expert_rank[{}] is {}, outside [0, {})",
                                                      expert, owner_[expert], num_ranks));
    }
    local_.push_back(first_[owner_[expert] + 1]++);
  }
  for (int rank = 0; rank < num_ranks; ++rank) first_[rank + 1] += first_[rank];
  by_rank_.resize(config.num_experts);
  for (int expert = 0; expert < config.num_experts; ++expert) {
    by_rank_[first_[owner_[expert]] + local_[expert]] = expert;
  }
}

int ExpertMap::max_num_local() const noexcept {
  int most = 0;
  for (int rank = 0; rank < num_ranks(); ++rank) most = std::max(most, num_local(rank));
  return most;
}

}  // namespace ferry::internal
