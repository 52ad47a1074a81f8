// The oracle's routing: the ranks that take part, the experts of each member, and the destination
// of every entry of every token.
#include <algorithm>

#include "oracle/rows.h"

namespace ferry::internal {
namespace {

struct Expert {
  int rank = 0;   // expert-parallel
  int local = 0;  // index among that rank's experts, by ascending expert id
};

// [E]: where each expert lives.
std::vector<Expert> place_experts(const ExchangeConfig& config, int num_ranks) {
  std::vector<Expert> experts;
  std::vector<int> experts_so_far(num_ranks, 0);
  std::vector<int> owners;
  for (int rank = 0; config.expert_ranks.empty() && rank < num_ranks; ++rank)
    owners.push_back(rank);
  for (const int rank : config.expert_ranks) owners.push_back(rank);
  std::erase_if(owners, [&](int rank) { return rank < config.shared.num_ranks; });
  const int blocks = static_cast<int>(owners.size());
  for (int block = 0; config.expert_rank.empty() && block < blocks; ++block) {
    const int here = config.num_experts / blocks + (block < config.num_experts % blocks ? 1 : 0);
    for (int local = 0; local < here; ++local) experts.push_back({owners[block], local});
  }
  for (const int rank : config.expert_rank) experts.push_back({rank, experts_so_far[rank]++});
  return experts;
}

// One dispatch, seen whole.
class Router {
 public:
  Router(const ExchangeConfig& config, const std::vector<RankInput>& inputs)
      : config_(config),
        inputs_(inputs),
        num_ranks_(static_cast<int>(inputs.size()) / config.tp_size),
        experts_(place_experts(config, num_ranks_)) {
    for (int rank = 0; rank < num_ranks_; ++rank) ranks_.push_back(rank);
    if (!inputs[0].active_ranks.empty()) ranks_ = inputs[0].active_ranks;
    for (int member = 0; member < static_cast<int>(ranks_.size()); ++member) {
      if (ranks_[member] < config.shared.num_ranks) shared_members_.push_back(member);
    }
  }

  std::vector<ReferenceMember> members() const {
    std::vector<ReferenceMember> members;
    for (const int rank : ranks_) {
      ReferenceMember member;
      for (int tp_rank = 0; tp_rank < config_.tp_size; ++tp_rank)
        member.ranks.push_back(rank * config_.tp_size + tp_rank);
      member.num_local_experts = routed_experts(rank) + (rank < config_.shared.num_ranks ? 1 : 0);
      members.push_back(member);
    }
    return members;
  }

  // Entry k of a token of the rank at `tp_rank` of `source`.
  ReferenceEntry entry(int source, int tp_rank, std::int64_t token, int k) const {
    const RankInput& input = inputs_[ranks_[source] * config_.tp_size + tp_rank];
    if (k >= config_.top_k)
      return takes_part(input, token) ? shared_entry(source, input, token, k - config_.top_k)
                                      : ReferenceEntry{};
    if (!is_sent(input, token, k)) return {};
    const std::int64_t id = input.topk_ids[token * config_.top_k + k];
    const std::int64_t logical = reference_logical_experts(config_);
    if (id >= logical) return {.special = static_cast<int>(id - logical)};
    const Expert& expert = experts_[instance(source, input, token, id)];
    const auto owner = std::find(ranks_.begin(), ranks_.end(), expert.rank);
    if (owner == ranks_.end()) return {};
    return {.member = static_cast<int>(owner - ranks_.begin()), .local = expert.local};
  }

 private:
  int routed_experts(int rank) const {
    int number = 0;
    for (const Expert& expert : experts_) number += expert.rank == rank ? 1 : 0;
    return number;
  }

  bool is_sent(const RankInput& input, std::int64_t token, int k) const {
    const std::int64_t index = token * config_.top_k + k;
    if (!input.token_mask.empty() && input.token_mask[token] == 0) return false;
    if (!input.topk_mask.empty() && input.topk_mask[index] == 0) return false;
    return input.topk_ids[index] != -1;
  }

  bool takes_part(const RankInput& input, std::int64_t token) const {
    for (int k = 0; k < config_.top_k; ++k) {
      if (is_sent(input, token, k)) return true;
    }
    return false;
  }

  // The expert that stands for a logical one.
  std::int64_t instance(int source, const RankInput& input, std::int64_t token,
                        std::int64_t logical) const {
    if (config_.replicas.instances.empty()) return logical;
    const std::vector<int>& instances = config_.replicas.instances[logical];
    const auto count = static_cast<std::int64_t>(instances.size());
    switch (config_.replicas.choice) {
      case ReplicaChoice::kByRank: return instances[source % count];
      case ReplicaChoice::kByToken: return instances[token % count];
      case ReplicaChoice::kByTable: return instances[input.replica_table[logical]];
    }
    return -1;
  }

  ReferenceEntry shared_entry(int source, const RankInput& input, std::int64_t token,
                              int expert) const {
    const int ranks = static_cast<int>(shared_members_.size());  // S
    if (ranks == 0) return {};
    const int ranks_per_expert = ranks / config_.shared.num_experts;  // G
    const int member = config_.shared.rule == SharedRule::kByRank
                           ? shared_members_[source % ranks_per_expert + expert * ranks_per_expert]
                           : member_of_run(source, input.num_tokens, token);
    // Behind the experts that a caller's placement may have put there.
    return {.member = member, .local = routed_experts(ranks_[member])};
  }

  // kByToken: a shared member keeps its tokens, another deals them out in runs.
  int member_of_run(int source, std::int64_t num_tokens, std::int64_t token) const {
    for (const int member : shared_members_) {
      if (member == source) return source;
    }
    const auto ranks = static_cast<std::int64_t>(shared_members_.size());
    std::int64_t end = 0;  // of run i
    for (std::int64_t i = 0; i < ranks; ++i) {
      end += (i + 1 + source) * num_tokens / ranks - (i + source) * num_tokens / ranks;
      if (token < end) return shared_members_[i];
    }
    return -1;
  }

  const ExchangeConfig& config_;
  const std::vector<RankInput>& inputs_;
  const int num_ranks_;  // expert-parallel
  const std::vector<Expert> experts_;
  std::vector<int> ranks_;           // expert-parallel rank of each member
  std::vector<int> shared_members_;  // those with a shared expert
};

}  // namespace

std::int64_t reference_logical_experts(const ExchangeConfig& config) {
  return config.replicas.instances.empty()
             ? config.num_experts
             : static_cast<std::int64_t>(config.replicas.instances.size());
}

ReferenceRouting reference_routing(const ExchangeConfig& config,
                                   const std::vector<RankInput>& inputs) {
  const Router router(config, inputs);
  ReferenceRouting routing;
  routing.members = router.members();
  routing.entries_per_token = config.top_k + config.shared.num_experts;
  routing.entries.resize(inputs.size());
  for (int member = 0; member < static_cast<int>(routing.members.size()); ++member) {
    for (int tp_rank = 0; tp_rank < config.tp_size; ++tp_rank) {
      const int rank = routing.members[member].ranks[tp_rank];
      for (std::int64_t token = 0; token < inputs[rank].num_tokens; ++token) {
        for (int k = 0; k < routing.entries_per_token; ++k)
          routing.entries[rank].push_back(router.entry(member, tp_rank, token, k));
      }
    }
  }
  return routing;
}

}  // namespace ferry::internal
