#include "traffic/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "traffic/tree_walk.h"

namespace ferry::internal {

namespace {

constexpr double kBytesPerUs = 1e3;  // 1 GB/s
constexpr double kPieces = 32;  // pieces of a message; PlanOptions::chunks has the same default
// In order of preference: the first of equal ones is chosen.
constexpr std::array kAlgorithms = {Algorithm::kHierarchical, Algorithm::kFullmesh,
                                    Algorithm::kAllgather};

// The steps of one direction of an exchange, dispatch or combine, on the links of a tree.
class Direction {
 public:
  Direction(const Topology& topology, const std::vector<TreeStep>& steps, bool combine)
      : topology_(topology),
        steps_(steps),
        combine_(combine),
        alone_us_(steps.size()),
        moves_bytes_(steps.size()) {
    for (int level = 0; level < topology.num_levels(); ++level) add_level(level);
    set_starts();
  }

  // The bytes of the busiest link of a level.
  double bytes(int level) const { return busiest_bytes_[level]; }
  double us(int level) const { return us_per_byte(level) * busiest_bytes_[level]; }

  // A lower bound of the planner's simulation. A step ends after its own bytes and after the bytes
  // that it waits for; a link ends when it has moved all bytes of steps that cannot start earlier.
  double least_us() const {
    double least = ends_us_.empty() ? 0 : std::ranges::max(ends_us_);
    for (int level = 0; level < topology_.num_levels(); ++level)
      for (const Bytes& link : links_[level]) least = std::max(least, end_us(level, link));
    return least;
  }

 private:
  using Bytes = std::vector<double>;  // [steps]: on one direction of a link

  double us_per_byte(int level) const {
    const double gb_s = topology_.level(level).link.total_gb_s();
    return gb_s > 0 ? 1 / (gb_s * kBytesPerUs) : 0;
  }

  void add_level(int level) {
    std::vector<Bytes>& links = links_.emplace_back();
    for (std::size_t step = 0; step < steps_.size(); ++step) {
      const std::vector<TreeLoad> loads = on_links(topology_, steps_[step], level);
      links.resize(2 * loads.size(), Bytes(steps_.size()));
      for (std::size_t i = 0; i < loads.size(); ++i) {
        links[2 * i][step] = bytes_of(loads[i].out);
        links[2 * i + 1][step] = bytes_of(loads[i].in);
      }
    }
    double busiest = 0;
    for (const Bytes& link : links) {
      double sum = 0;
      for (std::size_t step = 0; step < steps_.size(); ++step) {
        sum += link[step];
        alone_us_[step] = std::max(alone_us_[step], link[step] * us_per_byte(level));
        moves_bytes_[step] = moves_bytes_[step] || link[step] > 0;
      }
      busiest = std::max(busiest, sum);
    }
    busiest_bytes_.push_back(busiest);
  }

  double bytes_of(const PairBytes& bytes) const {
    return combine_ ? bytes.combine : bytes.dispatch;
  }

  // A mate passes a piece on when it has arrived, and the last piece when all have arrived.
  void set_starts() {
    starts_us_.resize(steps_.size());
    ends_us_.resize(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const std::size_t step = combine_ ? steps_.size() - 1 - i : i;
      if (!moves_bytes_[step]) continue;
      double first = 0, last = 0;
      for (std::size_t other = 0; other < steps_.size(); ++other) {
        if (!moves_bytes_[other] || !waits_for(steps_[step], steps_[other], combine_)) continue;
        first = std::max(first, starts_us_[other] + alone_us_[other] / kPieces);
        last = std::max(last, ends_us_[other]);
      }
      const double latency = latency_us(topology_, steps_[step]);
      starts_us_[step] = first + latency;
      ends_us_[step] =
          std::max(starts_us_[step] + alone_us_[step], last + latency + alone_us_[step] / kPieces);
    }
  }

  // When a step starts, its bytes and those of all steps that start later have not moved yet.
  double end_us(int level, const Bytes& link) const {
    double end = 0;
    for (std::size_t first = 0; first < steps_.size(); ++first) {
      if (link[first] * us_per_byte(level) <= 0) continue;
      double bytes = 0;
      for (std::size_t step = 0; step < steps_.size(); ++step)
        if (starts_us_[step] >= starts_us_[first]) bytes += link[step];
      end = std::max(end, starts_us_[first] + bytes * us_per_byte(level));
    }
    return end;
  }

  const Topology& topology_;
  const std::vector<TreeStep>& steps_;
  const bool combine_;
  std::vector<std::vector<Bytes>> links_;    // [levels][links and their two directions]
  std::vector<double> busiest_bytes_;        // [levels]
  std::vector<double> alone_us_;             // [steps]: time while no other step moves
  std::vector<bool> moves_bytes_;            // [steps]
  std::vector<double> starts_us_, ends_us_;  // [steps]: the earliest times; 0 without bytes
};

}  // namespace

Candidate candidate_of(const Topology& topology, const Traffic& traffic, Algorithm algorithm) {
  const std::vector<TreeStep> steps =
      tree_steps(topology, traffic, uniform_demand(traffic), copies_of(algorithm));
  const Direction dispatch(topology, steps, false), combine(topology, steps, true);
  Candidate candidate{.name = algorithm_name(algorithm),
                      .pair_us = dispatch.least_us() + combine.least_us()};
  for (int level = 0; level < topology.num_levels(); ++level) {
    if (dispatch.bytes(level) + combine.bytes(level) <= 0) continue;
    candidate.links.push_back({.name = topology.level(level).name,
                               .gb_s = topology.level(level).link.total_gb_s(),
                               .dispatch_bytes = dispatch.bytes(level),
                               .combine_bytes = combine.bytes(level),
                               .dispatch_us = dispatch.us(level),
                               .combine_us = combine.us(level)});
  }
  candidate.limited_by = limit_of(candidate.links, candidate.pair_us);
  return candidate;
}

AlgorithmChoice choose_algorithm(const Topology& topology, const Traffic& traffic) {
  if (topology.num_nodes() == 1) return {Algorithm::kFullmesh, "one node: nothing crosses"};
  std::vector<Candidate> candidates;
  for (const Algorithm algorithm : kAlgorithms)
    candidates.push_back(candidate_of(topology, traffic, algorithm));
  const std::vector<int> order = best_first(candidates);
  return {kAlgorithms[order.front()], fmt::format("{} nodes, routing uniform: {}",
                                                  topology.num_nodes(), why(candidates, order))};
}

const char* algorithm_name(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::kAuto: return "auto";
    case Algorithm::kFullmesh: return "fullmesh";
    case Algorithm::kHierarchical: return "hierarchical";
    case Algorithm::kAllgather: return "allgather";
  }
  return "unknown";
}

}  // namespace ferry::internal
