#include "topology/traffic.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "kernels/wire_formats.h"
#include "routing/expert_map.h"

namespace ferry::internal {

namespace {

// What a token leaves in a set of ranks, on average.
struct Rows {
  double dispatch = 0;
  double combine = 0;

  void operator+=(const Rows& other) { dispatch += other.dispatch, combine += other.combine; }
  Rows operator-(const Rows& other) const {
    return {dispatch - other.dispatch, combine - other.combine};
  }
  Rows operator*(double tokens) const { return {dispatch * tokens, combine * tokens}; }
};

// Of one link; combine's rows go the other way.
struct Load {
  Rows out, in;
};

// Rows of all tokens over the links of a level, by adding up what each rank sends and receives. The
// rank that moves a token inside a node is its source, or the source's mate there.
class LevelLoads {
 public:
  LevelLoads(const Topology& topology, const Traffic& traffic, Algorithm algorithm)
      : topology_(topology), traffic_(traffic), algorithm_(algorithm) {
    for (int node = 0; node < topology.num_nodes(); ++node) {
      const std::span<const int> ranks = topology.node_ranks(node);
      ++num_nodes_of_[std::ssize(ranks)];
      crossing_.push_back(crossing(ranks));
      all_crossing_ += crossing_.back();
    }
  }

  // Of whole nodes, towards others.
  std::vector<Load> network(int level, int group) const {
    const std::span<const int> ranks = topology_.members(group, level);
    Rows inside;
    NodesBySize outside = num_nodes_of_;
    for (std::size_t first = 0; first < ranks.size();) {
      const int node = topology_.node_of(ranks[first]);
      const std::span<const int> its_ranks = topology_.node_ranks(node);
      inside += crossing_[node];
      --outside[std::ssize(its_ranks)];
      first += its_ranks.size();
    }
    std::vector<Load> links(topology_.level(level).link.count);
    for (const int rank : ranks) {
      Load& link = links[topology_.link_of(rank, level)];
      link.out += all_crossing_ - inside;
      link.in += crossing_[topology_.node_of(rank)] * num_served(rank, outside);
    }
    return links;
  }

  // Of a part of a node, towards the rest of it.
  std::vector<Load> memory(int level, int group) const {
    const std::span<const int> ranks = topology_.members(group, level);
    const std::span<const int> node = topology_.node_ranks(topology_.node_of(ranks[0]));
    const Rows rest = stored(node) - stored(ranks);
    const double rest_moves = moves(node) - moves(ranks);
    std::vector<Load> links(topology_.level(level).link.count);
    for (const int rank : ranks) {
      Load& link = links[topology_.link_of(rank, level)];
      link.out += rest * moves(std::span(&rank, 1));
      link.in += stored(std::span(&rank, 1)) * rest_moves;
    }
    return links;
  }

 private:
  using NodesBySize = std::map<std::int64_t, int>;

  int experts_of(std::span<const int> ranks) const {
    int experts = 0;
    for (const int rank : ranks) experts += traffic_.rank_experts[rank];
    return experts;
  }

  double ranks_touched(std::span<const int> ranks) const {
    double touched = 0;
    for (const int rank : ranks)
      touched += touch_probability(traffic_, traffic_.rank_experts[rank]);
    return touched;
  }

  // Rows on the network, of a token of another node.
  Rows crossing(std::span<const int> node) const {
    const double copies = algorithm_ == Algorithm::kFullmesh
                              ? ranks_touched(node)
                              : touch_probability(traffic_, experts_of(node));
    return {.dispatch = algorithm_ == Algorithm::kAllgather ? 1 : copies,
            .combine = traffic_.exact ? stored(node).combine : copies};
  }

  // Rows in windows.
  Rows stored(std::span<const int> ranks) const {
    const double all =
        std::accumulate(traffic_.rank_experts.begin(), traffic_.rank_experts.end(), 0);
    const double rows =
        traffic_.row_per_rank ? ranks_touched(ranks) : traffic_.top_k * experts_of(ranks) / all;
    return {rows, rows};
  }

  // Ranks in these nodes whose mate is `rank`.
  double num_served(int rank, const NodesBySize& nodes) const {
    const std::span<const int> its_node = topology_.node_ranks(topology_.node_of(rank));
    const auto size = std::ssize(its_node);
    const auto position = std::ranges::lower_bound(its_node, rank) - its_node.begin();
    std::int64_t served = 0;
    for (const auto& [ranks, count] : nodes)
      served += count * (ranks / size + (position < ranks % size ? 1 : 0));
    return static_cast<double>(served);
  }

  // Ranks whose tokens these ranks of one node move in it: themselves, and those they serve.
  double moves(std::span<const int> ranks) const {
    NodesBySize others = num_nodes_of_;
    --others[std::ssize(topology_.node_ranks(topology_.node_of(ranks[0])))];
    double moved = 0;
    for (const int rank : ranks) moved += 1 + num_served(rank, others);
    return moved;
  }

  const Topology& topology_;
  const Traffic& traffic_;
  const Algorithm algorithm_;
  NodesBySize num_nodes_of_;
  std::vector<Rows> crossing_;  // [nodes]
  Rows all_crossing_;
};

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
  const WireFormat& home = wire_format(config.combine_wire);
  traffic.output_bytes = home.encode
                             ? static_cast<double>(home.encoded_bytes(config.hidden, config.dtype))
                             : row_bytes;
  traffic.sum_bytes = config.node_sums == NodeSums::kFp32 ? hidden * sizeof(float) : row_bytes;
  traffic.row_per_rank = config.layout == Layout::kRankMajor;
  traffic.exact = config.node_sums == NodeSums::kExact;
  return traffic;
}

double touch_probability(const Traffic& traffic, int experts) {
  if (experts == 0) return 0;
  const int all = std::accumulate(traffic.rank_experts.begin(), traffic.rank_experts.end(), 0);
  double missed = 1;  // all experts of the token are others
  for (int k = 0; k < traffic.top_k && missed > 0; ++k)
    missed *= static_cast<double>(std::max(0, all - experts - k)) / (all - k);
  return 1 - missed;
}

std::vector<LinkBytes> level_bytes(const Topology& topology, const Traffic& traffic,
                                   Algorithm algorithm) {
  const LevelLoads loads(topology, traffic, algorithm);
  const auto tokens = static_cast<double>(traffic.tokens);
  const int host = topology.find_level(Topology::kHost);
  const double home_bytes = traffic.exact ? traffic.output_bytes : traffic.sum_bytes;
  std::vector<LinkBytes> levels(topology.num_levels());
  for (int level = 0; level < topology.num_levels(); ++level) {
    const bool network = level <= host;
    const double combine_bytes = network ? home_bytes : traffic.output_bytes;
    for (int group = 0; group < topology.level(level).num_groups(); ++group) {
      for (const Load& link : network ? loads.network(level, group) : loads.memory(level, group)) {
        LinkBytes& most = levels[level];
        most.dispatch = std::max({most.dispatch, tokens * traffic.row_bytes * link.out.dispatch,
                                  tokens * traffic.row_bytes * link.in.dispatch});
        most.combine = std::max({most.combine, tokens * combine_bytes * link.out.combine,
                                 tokens * combine_bytes * link.in.combine});
      }
    }
  }
  return levels;
}

}  // namespace ferry::internal
