#include "routing/expert_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ferry/status.h"
#include "routing/roles.h"

namespace ferry::internal {

namespace {

// The owners of contiguous blocks of experts: expert_ranks (all ranks if it is empty) without those
// of the shared experts. The first E % ranks blocks have one expert more than the others.
std::vector<std::int32_t> contiguous_owners(const ExchangeConfig& config, int num_ranks) {
  std::vector<int> ranks = config.expert_ranks;
  if (ranks.empty()) {
    ranks.resize(num_ranks);
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  const std::size_t all = ranks.size();
  std::erase_if(ranks, [&](int rank) { return rank < config.shared.num_ranks; });
  if (ranks.empty()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("shared.num_ranks is {} of {} ranks: no rank remains for {} experts",
                            config.shared.num_ranks, all, config.num_experts));
  }
  std::vector<std::int32_t> owner;
  owner.reserve(config.num_experts);
  const int owners = static_cast<int>(ranks.size());
  for (int i = 0; i < owners; ++i) {
    const int block = config.num_experts / owners + (i < config.num_experts % owners ? 1 : 0);
    owner.insert(owner.end(), block, ranks[i]);
  }
  FERRY_CHECK(std::ssize(owner), ==, config.num_experts);
  return owner;
}

}  // namespace

ExpertMap::ExpertMap(const ExchangeConfig& config, int num_ranks, std::span<const int> members)
    : rule_(config.shared.rule),
      num_experts_(config.num_experts),
      owner_(config.expert_rank.begin(), config.expert_rank.end()),
      shared_(members.size(), -1),
      first_(members.size() + 1) {
  check_roles(config, num_ranks);
  if (owner_.empty()) owner_ = contiguous_owners(config, num_ranks);
  if (static_cast<int>(owner_.size()) != config.num_experts) {
    throw Error(Code::kInvalidArgument,
                fmt::format("expert_rank names the owner of {} experts, num_experts is {}",
                            owner_.size(), config.num_experts));
  }
  std::vector<std::int32_t> member_of(num_ranks, -1);
  for (std::size_t member = 0; member < members.size(); ++member) {
    FERRY_CHECK(members[member], >=, 0);
    FERRY_CHECK(members[member], <, num_ranks);
    FERRY_CHECK(member_of[members[member]], ==, -1);  // members are distinct
    member_of[members[member]] = static_cast<std::int32_t>(member);
  }
  for (int expert = 0; expert < config.num_experts; ++expert) {
    if (owner_[expert] < 0 || owner_[expert] >= num_ranks) {
      throw Error(Code::kInvalidArgument, fmt::format("expert_rank[{}] is {}, outside [0, {})",
                                                      expert, owner_[expert], num_ranks));
    }
    owner_[expert] = member_of[owner_[expert]];
  }
  add_shared(config, members);
  index_columns();
}

void ExpertMap::add_shared(const ExchangeConfig& config, std::span<const int> members) {
  int num_shared = 0;
  for (std::size_t member = 0; member < members.size(); ++member) {
    if (members[member] >= config.shared.num_ranks) continue;
    shared_[member] = num_shared++;
    owner_.push_back(static_cast<std::int32_t>(member));
  }
  shared_group_ = config.shared.num_experts ? num_shared / config.shared.num_experts : 0;
  if (shared_group_ * config.shared.num_experts != num_shared) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("{} ranks hold shared experts, need a multiple of shared.num_experts {}",
                    num_shared, config.shared.num_experts));
  }
}

void ExpertMap::index_columns() {
  for (const std::int32_t owner : owner_) local_.push_back(owner < 0 ? -1 : first_[owner + 1]++);
  for (int member = 0; member < num_members(); ++member) first_[member + 1] += first_[member];
  by_member_.resize(first_.back());
  for (int column = 0; column < num_columns(); ++column) {
    if (owner_[column] >= 0) by_member_[first_[owner_[column]] + local_[column]] = column;
  }
  FERRY_CHECK(std::ranges::count_if(owner_, [](std::int32_t owner) { return owner >= 0; }), ==,
              std::ssize(by_member_));
  FERRY_CHECK(local_.size(), ==, owner_.size());
}

int ExpertMap::max_num_local() const noexcept {
  int most = 0;
  for (int member = 0; member < num_members(); ++member) most = std::max(most, num_local(member));
  return most;
}

int ExpertMap::shared_column(int member, int shared, std::int64_t token,
                             std::int64_t num_tokens) const noexcept {
  if (shared_group_ == 0) return -1;
  if (rule_ == SharedRule::kByRank)
    return num_experts_ + member % shared_group_ + shared * shared_group_;
  if (shared_[member] >= 0) return num_experts_ + shared_[member];
  // The tokens of a member are split into runs, one for each shared rank. Run i begins with token
  // (i + member) * T / S - member * T / S. This token is in the last run that begins at or before
  // it.
  const std::int64_t at = token + member * num_tokens / shared_group_;
  const std::int64_t run = ((at + 1) * shared_group_ - 1) / num_tokens - member;
  return num_experts_ + static_cast<int>(run);
}

}  // namespace ferry::internal
