#include "cann/attributes.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "cann/refusal.h"

namespace ferry::cann::internal {

namespace {

constexpr int kMaxTopK = 32;
constexpr int kMaxExperts = 1 << 20;
constexpr int kMaxTp = 8;
constexpr int kMaxRanks = 1 << 16;
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 30;
// With global_bs 0 the exchange is made for batches of up to a power of two, at least this one, so
// that decode steps of all sizes share few exchanges.
constexpr std::int64_t kLeastBatch = 16;

void check_world(const Attributes& a, const Place& place) {
  require_in("ep_world_size", a.ep_world_size, 1, kMaxRanks);
  require_in("tp_world_size", a.tp_world_size, 0, kMaxTp);
  const std::int64_t tp_size = tp_size_of(a), ranks = a.ep_world_size * tp_size;
  require_fit(ranks == place.size,
              "ep_world_size {} times max(tp_world_size, 1) {} is {}, the group has {} ranks",
              a.ep_world_size, tp_size, ranks, place.size);
  require_value(a.ep_rank_id == place.rank / tp_size,
                "ep_rank_id is {}, rank {} of the group has {} (rank / max(tp_world_size, 1))",
                a.ep_rank_id, place.rank, place.rank / tp_size);
  require_value(tp_size == 1 || a.tp_rank_id == place.rank % tp_size,
                "tp_rank_id is {}, rank {} of the group has {} (rank % tp_world_size)",
                a.tp_rank_id, place.rank, place.rank % tp_size);
}

void check_experts(const Attributes& a) {
  require_in("version", a.version, 1, 4);
  require_in("moe_expert_num", a.moe_expert_num, 1, kMaxExperts);
  require_in("expert_shard_type", a.expert_shard_type, 0, 0);
  require_in("shared_expert_rank_num", a.shared_expert_rank_num, 0, a.ep_world_size - 1);
  require_in("zero_expert_num", a.zero_expert_num, 0, kMaxExperts);
  require_in("copy_expert_num", a.copy_expert_num, 0, kMaxExperts);
  require_in("const_expert_num", a.const_expert_num, 0, kMaxExperts);
  if (a.shared_expert_rank_num == 0)
    return require_in("shared_expert_num", a.shared_expert_num, 0, 4);
  require_value(
      a.shared_expert_num >= 1 && a.shared_expert_num <= (a.version == 1 ? 1 : 4),
      "shared_expert_num is {} with shared_expert_rank_num {}, need 1 to {} in version {}",
      a.shared_expert_num, a.shared_expert_rank_num, a.version == 1 ? 1 : 4, a.version);
  require_fit(a.shared_expert_rank_num % a.shared_expert_num == 0,
              "shared_expert_rank_num {} is not a multiple of shared_expert_num {}",
              a.shared_expert_rank_num, a.shared_expert_num);
}

void check_batch(const Attributes& a, const Batch& batch) {
  require_in("Bs, rows of expert_ids,", batch.bs, 0, kMaxBatch);
  require_in("H", batch.h, 1, std::int64_t{1} << 31);
  require_in("K, columns of expert_ids,", batch.k, 1, kMaxTopK);
  require_in("global_bs", a.global_bs, 0, kMaxBatch * a.ep_world_size);
  if (a.global_bs == 0) return;
  require_fit(a.global_bs % a.ep_world_size == 0,
              "global_bs {} is not a multiple of ep_world_size {}", a.global_bs, a.ep_world_size);
  require_fit(
      a.global_bs >= batch.bs * a.ep_world_size,
      "global_bs {} is less than Bs {} times ep_world_size {}; it is ep_world_size times the "
      "largest Bs of any rank",
      a.global_bs, batch.bs, a.ep_world_size);
}

void check_algorithm(std::string_view name) {
  require_fit(name != "ccu", "comm_alg is \"ccu\", a device that ferry does not have; use \"\"");
  require_value(std::ranges::count(kCommAlgs, name) == 1,
                "comm_alg is \"{}\", need \"\", \"fullmesh\", \"fullmesh_v1\", \"fullmesh_v2\" or "
                "\"hierarchy\"",
                name);
}

}  // namespace

void check_attributes(const Attributes& attributes, const Batch& batch, const Place& place) {
  check_world(attributes, place);
  check_experts(attributes);
  check_batch(attributes, batch);
  check_algorithm(attributes.comm_alg);
}

LocalExperts local_experts(const Attributes& a, std::int64_t ep_rank) {
  const std::int64_t ranks = a.ep_world_size - a.shared_expert_rank_num;
  const std::int64_t index = ep_rank - a.shared_expert_rank_num;
  FERRY_CHECK(index, >=, 0);
  FERRY_CHECK(index, <, ranks);
  const std::int64_t least = a.moe_expert_num / ranks, more = a.moe_expert_num % ranks;
  return {index * least + std::min(index, more), least + (index < more ? 1 : 0)};
}

Place claimed_place(const Attributes& a) {
  require_in("ep_world_size", a.ep_world_size, 1, kMaxRanks);
  require_in("tp_world_size", a.tp_world_size, 0, kMaxTp);
  require_in("ep_rank_id", a.ep_rank_id, 0, a.ep_world_size - 1);
  require_in("tp_rank_id", a.tp_rank_id, 0, tp_size_of(a) - 1);
  return {static_cast<int>(a.ep_rank_id * tp_size_of(a) + a.tp_rank_id),
          static_cast<int>(a.ep_world_size * tp_size_of(a))};
}

ExchangeConfig exchange_config(const Attributes& a, const Batch& batch) {
  FERRY_CHECK(a.moe_expert_num, >=, 1);
  FERRY_CHECK(a.moe_expert_num, <=, kMaxExperts);
  FERRY_CHECK(batch.k, <=, kMaxTopK);
  ExchangeConfig config;
  config.max_tokens = a.global_bs > 0
                          ? a.global_bs / a.ep_world_size
                          : static_cast<std::int64_t>(std::bit_ceil(
                                static_cast<std::uint64_t>(std::max(batch.bs, kLeastBatch))));
  config.hidden = batch.h;
  config.num_experts = static_cast<int>(a.moe_expert_num);
  config.top_k = static_cast<int>(batch.k);
  config.shared = {num_shared(a), num_shared(a) ? static_cast<int>(a.shared_expert_rank_num) : 0,
                   a.version == 1 ? SharedRule::kByToken : SharedRule::kByRank};
  config.special = {static_cast<int>(a.zero_expert_num), static_cast<int>(a.copy_expert_num),
                    static_cast<int>(a.const_expert_num)};
  FERRY_CHECK(config.max_tokens, >=, batch.bs);
  config.tp_size = tp_size_of(a);
  if (a.comm_alg == "hierarchy") config.algorithm = Algorithm::kHierarchical;
  if (a.comm_alg.starts_with("fullmesh")) {
    config.algorithm = Algorithm::kFullmesh;
    config.node_sums = NodeSums::kExact;  // summed in k order and rounded once, as on one host
  }
  return config;
}

std::int64_t row_capacity(const Attributes& a, const Batch& batch, bool elastic) {
  const std::int64_t max_bs = a.global_bs > 0 ? a.global_bs / a.ep_world_size : batch.bs;
  const std::int64_t shared_ranks = a.shared_expert_rank_num;
  const bool shared_rank = a.ep_rank_id < shared_ranks;
  const std::int64_t experts = local_experts(a, std::max(a.ep_rank_id, shared_ranks)).count;
  const std::int64_t routed = max_bs * a.ep_world_size * std::min(experts, batch.k);
  std::int64_t shared = 0;
  if (shared_ranks > 0) {
    const std::int64_t ranks_of_one = shared_ranks / a.shared_expert_num;
    FERRY_CHECK(ranks_of_one * a.shared_expert_num, ==, shared_ranks);
    shared = max_bs * ((a.ep_world_size + ranks_of_one - 1) / ranks_of_one);
  }
  return elastic ? std::max(routed, shared) : shared_rank ? shared : routed;
}

}  // namespace ferry::cann::internal
