#include "traffic/traffic.h"

#include <algorithm>
#include <numeric>

#include "kernels/wire_formats.h"
#include "routing/expert_map.h"

namespace ferry::internal {

namespace {

int num_experts(const Traffic& traffic) {
  return std::accumulate(traffic.rank_experts.begin(), traffic.rank_experts.end(), 0);
}

}  // namespace

Traffic traffic_of(const ExchangeConfig& config, int num_ranks) {
  const WireFormat& format = wire_format(config.wire);
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
  const double row_bytes = hidden * static_cast<double>(element_bytes(config.dtype));
  traffic.row_bytes = row_bytes + static_cast<double>(config.scale_bytes);
  if (format.encode) {
    traffic.row_bytes = static_cast<double>(format.encoded_bytes(config.hidden, config.dtype)) +
                        static_cast<double>(format.num_scales(config.hidden)) * 4;
  }
  const WireFormat& combine_wire = wire_format(config.combine_wire);
  traffic.output_bytes =
      combine_wire.encode
          ? static_cast<double>(combine_wire.encoded_bytes(config.hidden, config.dtype))
          : row_bytes;
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
