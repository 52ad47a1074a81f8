#include "plan/traffic.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "kernels/wire_formats.h"
#include "routing/expert_map.h"
#include "topology/mate.h"

namespace ferry::internal {

namespace {

// The rows that a token puts on a hop, on average.
struct Rows {
  double dispatch = 0;
  double combine = 0;

  void operator+=(const Rows& other) { dispatch += other.dispatch, combine += other.combine; }
  Rows operator-(const Rows& other) const {
    return {dispatch - other.dispatch, combine - other.combine};
  }
  Rows operator*(double tokens) const { return {dispatch * tokens, combine * tokens}; }
};

// Of one link, or what one rank puts on it; combine's rows go in the other direction.
struct Load {
  Rows out, in;

  void operator+=(const Load& other) { out += other.out, in += other.in; }
};

// The walk of all tokens down the tree. Who serves whom does not depend on the token, and whether
// it gets there only on the group: so all that is known of a rank is how many tokens it *holds*,
// its own and those that it was sent as a mate.
class LevelLoads {
 public:
  LevelLoads(const Topology& topology, const Traffic& traffic, Algorithm algorithm)
      : topology_(topology),
        traffic_(traffic),
        algorithm_(algorithm),
        host_(topology.find_level(Topology::kHost)),
        num_experts_(std::accumulate(traffic.rank_experts.begin(), traffic.rank_experts.end(), 0)),
        held_(topology.num_ranks(), 1),
        loads_(topology.num_ranks()) {}

  // Called for one level after the other, from the outermost: what each rank puts on its link.
  const std::vector<Load>& next(int level) {
    if (level > host_) {
      for (int node = 0; node < topology_.num_nodes(); ++node) store(level, node);
      return loads_;
    }
    int end = 0;
    for (const int siblings : topology_.level(level).fanout) {
      const Groups groups = {end, end += siblings};
      const Side all = side(level, groups);
      for (int group = groups.begin; group < groups.end; ++group) cross(level, group, all);
    }
    return loads_;
  }

 private:
  // Of one level, next to each other.
  struct Groups {
    int begin, end;
  };

  // Some groups with mates, as those outside see them.
  struct Side {
    Rows copies;               // that a token sends there
    std::vector<double> held;  // [positions in a group] tokens that their ranks send from there

    // [positions] tokens that the ranks of a group of `size` get from there as mates.
    std::vector<double> served(std::size_t size) const {
      std::vector<double> tokens(size);
      for (std::size_t position = 0; position < held.size(); ++position)
        tokens[mate_position(position, size)] += held[position];
      return tokens;
    }
  };

  // Between a group and its siblings, of which `all` are. What crosses here crosses the links of
  // all levels down to the host, so loads add up from level to level.
  void cross(int level, int group, const Side& all) {
    const Side own = side(level, {group, group + 1});
    const Groups inside = with_mates(level, {group, group + 1});
    for (int served = inside.begin; served < inside.end; ++served) {
      const std::span<const int> ranks = topology_.members(served, level_of_mates(level));
      const Rows copies = copies_to(ranks);
      const std::vector<double> by_all = all.served(ranks.size()),
                                by_own = own.served(ranks.size());
      for (std::size_t position = 0; position < ranks.size(); ++position) {
        const int rank = ranks[position];
        const double arrived = by_all[position] - by_own[position];
        loads_[rank] += {(all.copies - own.copies) * sent_on(rank), copies * arrived};
        held_[rank] += arrived;
      }
    }
  }

  Side side(int level, const Groups& groups) {
    Side side;
    const Groups inside = with_mates(level, groups);
    for (int group = inside.begin; group < inside.end; ++group) {
      const std::span<const int> ranks = topology_.members(group, level_of_mates(level));
      side.copies += copies_to(ranks);
      side.held.resize(std::max(side.held.size(), ranks.size()));
      for (std::size_t position = 0; position < ranks.size(); ++position)
        side.held[position] += sent_on(ranks[position]);
    }
    return side;
  }

  // Fullmesh goes straight to the node, from whatever level.
  bool flat() const { return algorithm_ == Algorithm::kFullmesh; }
  int level_of_mates(int level) const { return flat() ? host_ : level; }
  Groups with_mates(int level, const Groups& groups) const {
    if (!flat()) return groups;
    return {topology_.group_of(topology_.members(groups.begin, level).front(), host_),
            topology_.group_of(topology_.members(groups.end - 1, level).back(), host_) + 1};
  }
  double sent_on(int rank) const { return flat() ? 1 : held_[rank]; }

  // Of a token, from outside to a group with mates.
  Rows copies_to(std::span<const int> group) {
    const double copies = flat() ? ranks_touched(group) : touched(experts_of(group));
    return {.dispatch = algorithm_ == Algorithm::kAllgather ? 1 : copies,
            .combine = traffic_.exact ? rows_in(group) : copies};
  }

  // Between the parts of a node: whoever holds a token stores its rows wherever they belong.
  void store(int level, int node) {
    const std::span<const int> whole = topology_.node_ranks(node);
    const double rows = rows_in(whole), held = held_by(whole);
    for (int part = topology_.group_of(whole.front(), level);
         part <= topology_.group_of(whole.back(), level); ++part) {
      const std::span<const int> ranks = topology_.members(part, level);
      const double other_rows = rows - rows_in(ranks), held_elsewhere = held - held_by(ranks);
      for (const int rank : ranks) {
        const double out = held_[rank] * other_rows;
        const double in = held_elsewhere * rows_in(std::span(&rank, 1));
        loads_[rank] = {.out = {out, out}, .in = {in, in}};
      }
    }
  }

  // Rows in windows, of any token.
  double rows_in(std::span<const int> ranks) {
    if (traffic_.row_per_rank) return ranks_touched(ranks);
    return static_cast<double>(traffic_.top_k) * experts_of(ranks) / num_experts_;
  }

  double held_by(std::span<const int> ranks) const {
    double tokens = 0;
    for (const int rank : ranks) tokens += held_[rank];
    return tokens;
  }

  int experts_of(std::span<const int> ranks) const {
    int experts = 0;
    for (const int rank : ranks) experts += traffic_.rank_experts[rank];
    return experts;
  }

  double ranks_touched(std::span<const int> ranks) {
    double sum = 0;
    for (const int rank : ranks) sum += touched(traffic_.rank_experts[rank]);
    return sum;
  }

  double touched(int experts) {
    const auto [found, is_new] = touched_.try_emplace(experts);
    if (is_new) found->second = touch_probability(traffic_, experts);
    return found->second;
  }

  const Topology& topology_;
  const Traffic& traffic_;
  const Algorithm algorithm_;
  const int host_;
  const int num_experts_;
  std::vector<double> held_;       // [ranks]
  std::vector<Load> loads_;        // [ranks]
  std::map<int, double> touched_;  // by numbers of experts
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
  const WireFormat& combine_wire = wire_format(config.combine_wire);
  traffic.output_bytes =
      combine_wire.encode
          ? static_cast<double>(combine_wire.encoded_bytes(config.hidden, config.dtype))
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
  LevelLoads loads(topology, traffic, algorithm);
  const auto tokens = static_cast<double>(traffic.tokens);
  const double row_bytes = tokens * traffic.row_bytes;
  const double return_bytes = traffic.exact ? traffic.output_bytes : traffic.sum_bytes;
  std::vector<LinkBytes> levels(topology.num_levels());
  for (int level = 0; level < topology.num_levels(); ++level) {
    const bool network = level <= topology.find_level(Topology::kHost);
    const double combine_bytes = tokens * (network ? return_bytes : traffic.output_bytes);
    const std::vector<Load>& of_ranks = loads.next(level);
    LinkBytes& most = levels[level];
    for (int group = 0; group < topology.level(level).num_groups(); ++group) {
      std::vector<Load> links(topology.level(level).link.count);
      for (const int rank : topology.members(group, level))
        links[topology.link_of(rank, level)] += of_ranks[rank];
      for (const auto& [out, in] : links) {
        most.dispatch =
            std::max({most.dispatch, row_bytes * out.dispatch, row_bytes * in.dispatch});
        most.combine =
            std::max({most.combine, combine_bytes * out.combine, combine_bytes * in.combine});
      }
    }
  }
  return levels;
}

}  // namespace ferry::internal
