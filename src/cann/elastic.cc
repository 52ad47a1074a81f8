#include "cann/elastic.h"

#include <algorithm>

#include "base/check.h"
#include "cann/refusal.h"

namespace ferry::cann::internal {

namespace {

constexpr std::size_t kHeader = 4;  // isScaleDown, newEpWorld, newSharedRankNum, newMoeExpertNum

}  // namespace

std::vector<int> named_ranks(std::span<const std::int32_t> info) {
  if (info.empty() || info[0] == 0) return {};
  const std::size_t ep = info.size() < kHeader ? 0 : (info.size() - kHeader) / 2;
  if (info[0] != 1 || ep == 0 || info[1] < 1 || static_cast<std::size_t>(info[1]) > ep) return {-1};
  const std::span<const std::int32_t> table2 = info.subspan(kHeader + ep, info[1]);
  return {table2.begin(), table2.end()};
}

ElasticMap::ElasticMap(std::span<const std::int32_t> info, const Attributes& a) : attributes_(a) {
  if (info.empty()) return;
  const auto ep = static_cast<std::size_t>(a.ep_world_size);
  require_fit(info.size() == kHeader + 2 * ep, "elastic_info has {} elements, need {} (4 + 2 * ep)",
              info.size(), kHeader + 2 * ep);
  require_in("elastic_info[0], isScaleDown,", info[0], 0, 1);
  require_fit(tp_size_of(a) == 1, "elastic_info with tp_world_size {}, need 0 or 1",
              a.tp_world_size);
  if (info[0] == 0) return;
  const std::int64_t ranks = a.ep_world_size - a.shared_expert_rank_num;
  require_fit(a.moe_expert_num % ranks == 0,
              "elastic_info with moe_expert_num {} on {} ranks: every rank must have as many",
              a.moe_expert_num, ranks);
  local_experts_ = a.moe_expert_num / ranks;
  require_in("elastic_info[1], newEpWorld,", info[1], 1, a.ep_world_size);
  require_in("elastic_info[2], newSharedRankNum,", info[2], 0,
             std::min<std::int64_t>(info[1] - 1, a.shared_expert_rank_num));
  shared_ranks_ = info[2];
  const int shared = num_shared(a);
  require_fit(shared == 0 || shared_ranks_ % shared == 0,
              "elastic_info[2], newSharedRankNum, is {}, not a multiple of shared_expert_num {}",
              shared_ranks_, shared);
  experts_ = info[3];
  const std::int64_t remaining = (info[1] - shared_ranks_) * local_experts_;
  require_fit(experts_ == remaining,
              "elastic_info[3], newMoeExpertNum, is {}, need {}: {} ranks with {} experts each",
              experts_, remaining, info[1] - shared_ranks_, local_experts_);
  active_ = named_ranks(info);
  check_tables(info.subspan(kHeader, ep), info.subspan(kHeader + ep, ep));
  FERRY_CHECK(std::ssize(active_), ==, info[1]);
  FERRY_CHECK(num_sources(), <=, a.ep_world_size);
  FERRY_CHECK(std::int64_t{experts_}, <=, a.moe_expert_num);
}

// table1 (old rank to new rank) and table2 (new to old) are inverse, and the new ranks that hold
// shared experts are the first ones.
void ElasticMap::check_tables(std::span<const std::int32_t> table1,
                              std::span<const std::int32_t> table2) {
  const auto ep = static_cast<int>(table1.size());
  for (std::size_t now = 0; now < active_.size(); ++now) {
    const int old = table2[now];
    require_value(old >= 0 && old < ep, "elastic_info: table2[{}] is {}, need 0 to {}", now, old,
                  ep - 1);
    require_fit(table1[old] == static_cast<int>(now),
                "elastic_info: table2[{}] is {}, but table1[{}] is {}, need {}", now, old, old,
                table1[old], now);
    const bool shared = static_cast<int>(now) < shared_ranks_;
    require_fit(shared == (old < attributes_.shared_expert_rank_num),
                "elastic_info: new rank {} was rank {}; need the first {} new ranks "
                "(newSharedRankNum), and no others, to be old ranks below {} "
                "(shared_expert_rank_num)",
                now, old, shared_ranks_, attributes_.shared_expert_rank_num);
  }
  for (int old = 0; old < ep; ++old) {
    const auto now = std::find(active_.begin(), active_.end(), old);
    require_fit(now != active_.end() || table1[old] == -1,
                "elastic_info: table1[{}] is {}, need -1: rank {} is not in table2", old,
                table1[old], old);
  }
}

std::int32_t ElasticMap::old_expert(std::int32_t id) const noexcept {
  if (id < 0) return id;
  if (id >= experts_)  // a special expert: it has no rank
    return static_cast<std::int32_t>(attributes_.moe_expert_num) + (id - experts_);
  const std::int64_t old_rank = active_[shared_ranks_ + id / local_experts_];
  return static_cast<std::int32_t>(
      (old_rank - attributes_.shared_expert_rank_num) * local_experts_ + id % local_experts_);
}

const std::int32_t* ElasticMap::translate(Matrix<const std::int32_t> ids,
                                          std::vector<std::int32_t>& translated) const {
  if (!scaled_down() || ids.data == nullptr) return ids.data;
  const Attributes& a = attributes_;
  const std::int64_t end = experts_ + a.zero_expert_num + a.copy_expert_num + a.const_expert_num;
  translated.resize(ids.rows * ids.columns);
  for (std::size_t i = 0; i < translated.size(); ++i) {
    require_value(ids.data[i] >= -1 && ids.data[i] < end,
                  "expert id {} at token {}, k {} is outside [-1, {})", ids.data[i],
                  i / ids.columns, i % ids.columns, end);
    translated[i] = old_expert(ids.data[i]);
  }
  return translated.data();
}

ScaleRows ElasticMap::translate(ScaleRows scales, std::vector<float>& translated) const {
  if (!scaled_down() || scales.num_rows <= 1) return scales;
  FERRY_CHECK(std::int64_t{scales.num_rows}, ==,
              num_shared(attributes_) + attributes_.moe_expert_num);
  const std::int64_t channels = scales.num_channels;
  const int shared = num_shared(attributes_);
  translated.assign(scales.data, scales.data + scales.num_rows * channels);
  for (std::int32_t id = 0; id < experts_; ++id) {
    std::copy_n(scales.data + (shared + id) * channels, channels,
                translated.begin() + (shared + old_expert(id)) * channels);
  }
  return {translated.data(), scales.num_rows, channels};
}

}  // namespace ferry::cann::internal
