#include "traffic/tree_walk.h"

#include <algorithm>
#include <array>
#include <span>

#include "topology/mate.h"

namespace ferry::internal {

namespace {

// The average number of rows of a token for some ranks.
class TokenRows {
 public:
  TokenRows(const Traffic& traffic, const Demand& demand, TokenCopies copies)
      : traffic_(traffic), demand_(demand), copies_(copies) {}

  // The rows that cross from outside to a group with mates.
  PairBytes sent_to(std::span<const int> group) const {
    double touched = 0;
    if (copies_ == TokenCopies::kPerRank)
      for (const int rank : group) touched += demand_.touched(std::span(&rank, 1));
    else
      touched = demand_.touched(group);
    return {.dispatch = copies_ == TokenCopies::kAll ? 1 : touched,
            .combine = traffic_.exact ? in_windows(group) : touched};
  }

  double in_windows(std::span<const int> ranks) const {
    double rows = 0;
    for (const int rank : ranks) rows += demand_.window_rows(rank, traffic_.row_per_rank);
    return rows;
  }

 private:
  const Traffic& traffic_;
  const Demand& demand_;
  const TokenCopies copies_;
};

using Tokens = std::vector<double>;  // [ranks]: rows that each rank holds, per token of a source

double held_by(std::span<const int> ranks, const Tokens& tokens) {
  double sum = 0;
  for (const int rank : ranks) sum += tokens[rank];
  return sum;
}

// Converts the loads of a step, in rows per token of a source, to bytes.
void to_bytes(const Traffic& traffic, TreeStep& step) {
  const auto tokens = static_cast<double>(traffic.tokens);
  const double sum_bytes = traffic.exact ? traffic.output_bytes : traffic.sum_bytes;
  const double dispatch_bytes = tokens * traffic.row_bytes;
  const double combine_bytes = tokens * (step.network ? sum_bytes : traffic.output_bytes);
  for (TreeLoad& load : step.ranks) {
    for (PairBytes* const bytes : {&load.out, &load.in})
      bytes->dispatch *= dispatch_bytes, bytes->combine *= combine_bytes;
  }
}

// [ranks]: the tokens that each rank receives from siblings by Link::mates; empty without such
// pairs, where the position in a group decides.
std::vector<double> from_pairs(const Topology& topology, int level, const Tokens& tokens) {
  const std::vector<std::array<int, 2>>& pairs = topology.level(level).link.mates;
  if (pairs.empty()) return {};
  std::vector<double> got(tokens.size());
  const int groups = level == 0 ? 1 : topology.level(level - 1).num_groups();
  for (int group = 0; group < groups; ++group) {
    const int first = level == 0 ? 0 : topology.members(group, level - 1).front();
    for (const auto& [a, b] : pairs) {
      got[first + a] += tokens[first + b];
      got[first + b] += tokens[first + a];
    }
  }
  return got;
}

// Some groups with mates, as seen from outside of them.
struct Side {
  PairBytes copies;  // rows that a token sends to these groups
  std::vector<double>
      held;  // [positions in a group]: tokens that ranks at this position send from these groups

  // Adds the tokens that each rank of a group of `size` receives from these groups as a mate.
  void add_served(std::size_t size, int mates_xor, double part, std::vector<double>& tokens) const {
    for (std::size_t position = 0; position < held.size(); ++position)
      tokens[mate_position(position, size, mates_xor)] += part * held[position];
  }
};

// Which mate serves a rank does not depend on the token (a second way takes a fixed share of the
// tokens), and whether a token goes to a group depends on the group alone. So the number of tokens
// that a rank *holds* is enough: its own, and those that it received as a mate.
class TreeWalk {
 public:
  TreeWalk(const Topology& topology, const Traffic& traffic, const Demand& demand,
           TokenCopies copies)
      : topology_(topology),
        traffic_(traffic),
        rows_(traffic, demand, copies),
        flat_(copies == TokenCopies::kPerRank),
        host_(topology.find_level(Topology::kHost)),
        own_(topology.num_ranks(), 1) {
    for (std::size_t rank = 0; rank < traffic.sources.size(); ++rank)
      own_[rank] = traffic.sources[rank] ? 1 : 0;
    held_ = own_;
  }

  std::vector<TreeStep> run() {
    for (int level = 0; level <= host_; ++level) {
      std::vector<double> held = held_;
      add(level, true, own(), held);
      if (!flat_) add(level, true, passed_on(), held);
      held_ = std::move(held);
    }
    for (int level = host_ + 1; level < topology_.num_levels(); ++level) {
      add(level, false, own(), held_);
      add(level, false, passed_on(), held_);
    }
    return std::move(steps_);
  }

 private:
  // Consecutive groups of one level.
  struct Groups {
    int begin, end;
  };

  struct Part {
    bool passed_on;
    Tokens tokens;
  };
  Part own() const { return {false, own_}; }
  Part passed_on() const {
    Part part{true, held_};
    for (std::size_t rank = 0; rank < own_.size(); ++rank) part.tokens[rank] -= own_[rank];
    return part;
  }

  // Adds the hops of some tokens between the groups of a level; `held` grows by the tokens that
  // arrive.
  void add(int level, bool network, const Part& part, Tokens& held) {
    if (std::ranges::all_of(part.tokens, [](double tokens) { return tokens == 0; })) return;
    step_ = {.level = level,
             .network = network,
             .passed_on = part.passed_on,
             .ranks = std::vector<TreeLoad>(held.size())};
    int end = 0;
    for (const int siblings : topology_.level(level).fanout) {
      const Groups groups = {end, end += siblings};
      if (!network) {
        store(level, groups, part.tokens);
        continue;
      }
      const Side all = side(level, groups, part.tokens);
      for (int group = groups.begin; group < groups.end; ++group)
        cross(level, group, all, part.tokens, held);
    }
    to_bytes(traffic_, step_);
    steps_.push_back(std::move(step_));
  }

  // The hops between a group and its siblings. `all`: the siblings and the group.
  void cross(int level, int group, const Side& all, const Tokens& tokens, Tokens& held) {
    const Side own = side(level, {group, group + 1}, tokens);
    const Groups inside = with_mates(level, {group, group + 1});
    const Topology::Link& link = topology_.level(level_of_mates(level)).link;
    const double second = link.second_share();
    std::vector<double>
        by_pairs;  // empty for nodes that are not siblings, which use the position in a node
    if (level_of_mates(level) == level) by_pairs = from_pairs(topology_, level, tokens);
    for (int served = inside.begin; served < inside.end; ++served) {
      const std::span<const int> ranks = topology_.members(served, level_of_mates(level));
      const PairBytes copies = rows_.sent_to(ranks);
      std::vector<double> by_positions(ranks.size());
      const auto add_siblings = [&](int mates_xor, double part) {
        all.add_served(ranks.size(), mates_xor, part, by_positions);
        own.add_served(ranks.size(), mates_xor, -part, by_positions);
      };
      if (by_pairs.empty()) add_siblings(link.mates_xor, 1 - second);
      if (link.second_way) add_siblings(link.second_way->mates_xor, second);
      for (std::size_t position = 0; position < ranks.size(); ++position) {
        const int rank = ranks[position];
        const double paired = by_pairs.empty() ? 0 : (1 - second) * by_pairs[rank];
        const double arrived = by_positions[position] + paired;
        step_.ranks[rank] = {.out = {(all.copies.dispatch - own.copies.dispatch) * tokens[rank],
                                     (all.copies.combine - own.copies.combine) * tokens[rank]},
                             .in = {copies.dispatch * arrived, copies.combine * arrived}};
        held[rank] += arrived;
      }
    }
  }

  Side side(int level, const Groups& groups, const Tokens& tokens) const {
    Side side;
    const Groups inside = with_mates(level, groups);
    for (int group = inside.begin; group < inside.end; ++group) {
      const std::span<const int> ranks = topology_.members(group, level_of_mates(level));
      side.copies += rows_.sent_to(ranks);
      side.held.resize(std::max(side.held.size(), ranks.size()));
      for (std::size_t position = 0; position < ranks.size(); ++position)
        side.held[position] += tokens[ranks[position]];
    }
    return side;
  }

  int level_of_mates(int level) const { return flat_ ? host_ : level; }
  Groups with_mates(int level, const Groups& groups) const {
    if (!flat_) return groups;
    return {topology_.group_of(topology_.members(groups.begin, level).front(), host_),
            topology_.group_of(topology_.members(groups.end - 1, level).back(), host_) + 1};
  }

  // A rank that holds a token stores its rows in the windows of their ranks, over the levels inside
  // a node.
  void store(int level, const Groups& groups, const Tokens& tokens) {
    double all_rows = 0, all_held = 0;
    for (int group = groups.begin; group < groups.end; ++group) {
      all_rows += rows_.in_windows(topology_.members(group, level));
      all_held += held_by(topology_.members(group, level), tokens);
    }
    for (int group = groups.begin; group < groups.end; ++group) {
      const std::span<const int> ranks = topology_.members(group, level);
      const double rows = all_rows - rows_.in_windows(ranks),
                   held = all_held - held_by(ranks, tokens);
      for (const int rank : ranks) {
        const double out = tokens[rank] * rows, in = held * rows_.in_windows(std::span(&rank, 1));
        step_.ranks[rank] = {.out = {out, out}, .in = {in, in}};
      }
    }
  }

  const Topology& topology_;
  const Traffic& traffic_;
  const TokenRows rows_;
  const bool flat_;  // fullmesh: a source sends directly to the node, from every level
  const int host_;
  Tokens own_, held_;
  TreeStep step_;
  std::vector<TreeStep> steps_;
};

}  // namespace

TokenCopies copies_of(Algorithm algorithm) noexcept {
  if (algorithm == Algorithm::kFullmesh) return TokenCopies::kPerRank;
  return algorithm == Algorithm::kAllgather ? TokenCopies::kAll : TokenCopies::kPerGroup;
}

std::vector<TreeStep> tree_steps(const Topology& topology, const Traffic& traffic,
                                 const Demand& demand, TokenCopies copies) {
  return TreeWalk(topology, traffic, demand, copies).run();
}

bool crosses(const Topology& topology, const TreeStep& step, int level) {
  return step.level <= level && step.network == (level <= topology.find_level(Topology::kHost));
}

std::vector<TreeLoad> on_links(const Topology& topology, const TreeStep& step, int level) {
  const bool loaded = crosses(topology, step, level);
  std::vector<TreeLoad> links;
  for (int group = 0; group < topology.level(level).num_groups(); ++group) {
    int before = -1;  // consecutive ranks share a link
    for (const int rank : topology.members(group, level)) {
      const int link = topology.link_of(rank, level);
      if (link != before) links.emplace_back();
      before = link;
      if (!loaded) continue;
      links.back().out += step.ranks[rank].out;
      links.back().in += step.ranks[rank].in;
    }
  }
  return links;
}

bool waits_for(const TreeStep& step, const TreeStep& other, bool combine) {
  const TreeStep& later = combine ? other : step;
  const TreeStep& earlier = combine ? step : other;
  return later.passed_on && earlier.network && earlier.level < later.level;
}

double latency_us(const Topology& topology, const TreeStep& step) {
  double latency = 0;
  for (int level = step.level; level < topology.num_levels(); ++level)
    latency = std::max(latency, topology.level(level).link.latency_us);
  return latency;
}

std::vector<LinkBytes> level_bytes(const Topology& topology, const Traffic& traffic,
                                   Algorithm algorithm) {
  const std::vector<TreeStep> steps =
      tree_steps(topology, traffic, uniform_demand(traffic), copies_of(algorithm));
  std::vector<LinkBytes> levels(topology.num_levels());
  for (int level = 0; level < topology.num_levels(); ++level) {
    std::vector<TreeLoad> links;
    for (const TreeStep& step : steps) {
      const std::vector<TreeLoad> more = on_links(topology, step, level);
      links.resize(more.size());
      for (std::size_t i = 0; i < more.size(); ++i)
        links[i].out += more[i].out, links[i].in += more[i].in;
    }
    for (const auto& [out, in] : links) {
      levels[level].dispatch = std::max({levels[level].dispatch, out.dispatch, in.dispatch});
      levels[level].combine = std::max({levels[level].combine, out.combine, in.combine});
    }
  }
  return levels;
}

}  // namespace ferry::internal
