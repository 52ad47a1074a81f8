#include "cann/triplets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"

namespace ferry::cann::internal {

namespace {

// The finaliser of splitmix64.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

constexpr std::int64_t kNobody = -1;
constexpr std::uint32_t kIsShare = 1U << 31;  // the other bits add up to 0

}  // namespace

bool shares_fit(std::span<const std::uint64_t> digests) {
  std::uint32_t sum = 0;
  for (const std::uint64_t digest : digests) {
    const auto share = static_cast<std::uint32_t>(digest >> 32);
    if ((share & kIsShare) == 0) return true;
    sum += share;
  }
  return (sum & ~kIsShare) == 0;
}

Triplets::Triplets(const CombineArgs& args, const ElasticMap& elastic,
                   const ferry::DispatchArgs& dispatched)
    : args_(args),
      elastic_(elastic),
      dispatched_(dispatched),
      tp_size_(tp_size_of(args.attributes)) {}

void Triplets::for_each_sent(const std::function<void(const Entry&)>& visit) const {
  const Attributes& a = args_.attributes;
  const auto active = elastic_.active();
  const auto mine = std::find(active.begin(), active.end(), a.ep_rank_id);
  if (elastic_.scaled_down() && mine == active.end()) return;
  const std::int64_t ep_rank = elastic_.scaled_down() ? mine - active.begin() : a.ep_rank_id;
  const auto* ids = static_cast<const std::int32_t*>(dispatched_.topk_ids.data);
  const std::int64_t columns = args_.expert_ids.columns;
  for (std::int64_t i = 0; i < args_.expert_ids.rows * columns; ++i) {
    if (ids[i] < 0 || ids[i] >= a.moe_expert_num) continue;
    if (dispatched_.topk_mask != nullptr && dispatched_.topk_mask[i] == 0) continue;
    if (dispatched_.token_mask != nullptr && dispatched_.token_mask[i / columns] == 0) continue;
    const std::int64_t tp_rank = tp_size_ > 1 ? a.tp_rank_id : 0;
    visit({ep_rank * tp_size_ + tp_rank, i / columns, i % columns, ids[i]});
  }
}

// The rows are sorted by local expert, by tp_rank (that of this rank first, cyclic), and by source.
// Rows of shared experts have no id and are not visited.
void Triplets::for_each_received(const std::function<void(const Entry&)>& visit) const {
  const Attributes& a = args_.attributes;
  if (a.ep_rank_id < a.shared_expert_rank_num) return;
  const LocalExperts experts = local_experts(a, a.ep_rank_id);
  const std::int64_t sources = elastic_.num_sources(), block = experts.count * sources;
  const auto sum_at = [&](std::int64_t i) {
    return i % block == 0 ? 0 : args_.ep_send_counts[i - 1];
  };
  FERRY_CHECK(std::ssize(args_.ep_send_counts), >=, tp_size_ * block);
  std::int64_t row = 0;
  for (std::int64_t expert = 0; expert < experts.count; ++expert) {
    for (std::int64_t i = 0; i < tp_size_ * sources; ++i) {
      const std::int64_t turn = i / sources;
      const std::int64_t at = turn * block + expert * sources + i % sources;
      const std::int64_t end = row + args_.ep_send_counts[at] - sum_at(at);
      for (; row < end; ++row) {
        const std::int32_t* triplet = &args_.assist_info_for_combine[3 * row];
        const std::int64_t tp_rank = tp_size_ > 1 ? (a.tp_rank_id + turn) % tp_size_ : 0;
        visit({triplet[0] * tp_size_ + tp_rank, triplet[1], triplet[2], experts.first + expert});
      }
    }
  }
}

std::uint32_t Triplets::share_of_zero() const {
  const bool some = std::any_of(args_.ep_send_counts.begin(), args_.ep_send_counts.end(),
                                [](std::int32_t sum) { return sum > 0; });
  if (args_.ep_send_counts.empty() || (some && args_.assist_info_for_combine.empty())) return 0;
  std::uint64_t share = 0;
  const auto mark = [](const Entry& entry) {
    const auto pair = [](std::int64_t a, std::int64_t b) {
      return (static_cast<std::uint64_t>(a) << 32) + static_cast<std::uint64_t>(b);
    };
    return mixed(mixed(pair(entry.source, entry.token)) + pair(entry.k + 1, entry.expert));
  };
  for_each_received([&](const Entry& entry) { share += mark(entry); });
  // The ranks of all tp_ranks that hold the expert receive the row.
  for_each_sent([&](const Entry& entry) { share -= tp_size_ * mark(entry); });
  return static_cast<std::uint32_t>(share) | kIsShare;
}

// Gathers the ids of all ranks. Each rank looks for a received row whose id differs from its
// expert; the error names the row of the lowest rank that found one.
Status Triplets::name_difference(const Group& group, const ExchangeConfig& config) const {
  const char* const other = "expert_ids are not those that dispatch had";
  if (elastic_.scaled_down()) return {Code::kMismatch, other};
  const std::int64_t per_rank = config.max_tokens * config.top_k;
  std::vector<std::int32_t> ids(per_rank, -1), all(per_rank * group.size());
  FERRY_CHECK(args_.expert_ids.rows, <=, config.max_tokens);
  FERRY_CHECK(args_.expert_ids.columns, ==, std::int64_t{config.top_k});
  for_each_sent([&](const Entry& entry) {
    ids[entry.token * config.top_k + entry.k] = static_cast<std::int32_t>(entry.expert);
  });
  Group ranks = group;
  Status status = ranks.all_gather(ids.data(), ids.size() * sizeof ids[0], all.data());
  if (!status.ok()) return status;
  std::array<std::int64_t, 5> found = {kNobody};  // source, token, k, expert, id
  for_each_received([&](const Entry& row) {
    const bool inside = row.source >= 0 && row.source < group.size() && row.token >= 0 &&
                        row.token < config.max_tokens && row.k >= 0 && row.k < config.top_k;
    const std::int64_t id =
        inside ? all[row.source * per_rank + row.token * config.top_k + row.k] : -1;
    if (found[0] == kNobody && id != row.expert)
      found = {row.source, row.token, row.k, row.expert, id};
  });
  std::vector<std::array<std::int64_t, 5>> of_all(group.size());
  status = ranks.all_gather(found.data(), sizeof found, of_all.data());
  if (!status.ok()) return status;
  for (const int rank : ranks.view().members) {
    const auto& [source, token, k, expert, id] = of_all[rank];
    if (source == kNobody) continue;
    return {
        Code::kMismatch,
        fmt::format("{}: by assist_info_for_combine, rank {}, token {}, k {} went to expert {}, "
                    "but the id is {}",
                    other, source, token, k, expert, id),
        static_cast<int>(source)};
  }
  return {Code::kMismatch, other};
}

}  // namespace ferry::cann::internal
