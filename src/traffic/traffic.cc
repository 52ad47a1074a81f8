#include "traffic/traffic.h"

#include <algorithm>
#include <numeric>

#include "kernels/wire_sizes.h"
#include "routing/expert_map.h"

namespace ferry::internal {

namespace {

int num_experts(const Traffic& traffic) {
  return std::accumulate(traffic.rank_experts.begin(), traffic.rank_experts.end(), 0);
}

}  // namespace

double Traffic::num_sources() const {
  return static_cast<double>(sources.empty() ? std::ssize(rank_experts)
                                             : std::ranges::count(sources, true));
}

Traffic traffic_of(const ExchangeConfig& config, int num_ranks) {
  const auto hidden = static_cast<double>(config.hidden);
  Traffic traffic;
  traffic.tokens = config.max_tokens;
  traffic.top_k = config.top_k;
  traffic.rank_experts.assign(num_ranks, 0);
  std::vector<int> members(num_ranks / config.tp_size);
  std::iota(members.begin(), members.end(), 0);
  const ExpertMap map(config, static_cast<int>(members.size()), members);
  for (int expert = 0; expert < config.num_experts; ++expert)
    ++traffic.rank_experts[map.owner(expert) * config.tp_size];
  if (!config.token_ranks.empty()) traffic.sources.assign(num_ranks, false);
  for (const int member : config.token_ranks) {
    for (int tp_rank = 0; tp_rank < config.tp_size; ++tp_rank)
      traffic.sources[member * config.tp_size + tp_rank] = true;
  }
  const double row_bytes = hidden * static_cast<double>(element_bytes(config.dtype));
  traffic.row_bytes = row_bytes + static_cast<double>(config.scale_bytes);
  if (config.wire != Wire::kNone) {
    const auto [encoded_bytes, num_scales] = sizes_of(config.wire);
    traffic.row_bytes = static_cast<double>(encoded_bytes(config.hidden, config.dtype)) +
                        static_cast<double>(num_scales(config.hidden)) * 4;
  }
  traffic.output_bytes = row_bytes;
  if (config.combine_wire != CombineWire::kNone) {
    const WireSizes& sizes = sizes_of(config.combine_wire);
    traffic.output_bytes = static_cast<double>(sizes.encoded_bytes(config.hidden, config.dtype));
  }
  traffic.result_bytes = row_bytes;
  traffic.sum_bytes = config.node_sums == NodeSums::kFp32 ? hidden * sizeof(float) : row_bytes;
  traffic.row_per_rank = config.layout == Layout::kRankMajor;
  traffic.exact = config.node_sums == NodeSums::kExact;
  return traffic;
}

double touch_probability(int experts, int num_experts, int top_k) {
  if (experts == 0) return 0;
  double missed = 1;
  for (int k = 0; k < top_k && missed > 0; ++k)
    missed *= static_cast<double>(std::max(0, num_experts - experts - k)) / (num_experts - k);
  return 1 - missed;
}

double touch_probability(const Traffic& traffic, int experts) {
  return touch_probability(experts, num_experts(traffic), traffic.top_k);
}

Demand uniform_demand(const Traffic& traffic) {
  const int all = num_experts(traffic);
  const auto touched = [&traffic, all](std::span<const int> ranks) {
    int experts = 0;
    for (const int rank : ranks) experts += traffic.rank_experts[rank];
    return touch_probability(experts, all, traffic.top_k);
  };
  const auto rows = [&traffic, all](int rank) {
    return static_cast<double>(traffic.top_k) * traffic.rank_experts[rank] / all;
  };
  return {.touched = touched, .rows = rows};
}

}  // namespace ferry::internal
