#include "topology/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace ferry::internal {

namespace {

struct Cost {
  double us = 0;     // of the levels whose bandwidth is known, latencies included
  double bytes = 0;  // of the busiest link of a host
};

// Of one dispatch and its combine. Levels are crossed at the same time, so the slowest counts.
Cost cost_of(const Topology& topology, const std::vector<LinkBytes>& levels) {
  const int host = topology.find_level(Topology::kHost);
  double dispatch_us = 0, combine_us = 0;
  for (int level = 0; level <= host; ++level) {
    const auto [bandwidth, latency, count] = topology.level(level).link;
    const double us_per_byte = bandwidth > 0 ? 1 / (bandwidth * 1e3) : 0;
    dispatch_us = std::max(dispatch_us, latency + levels[level].dispatch * us_per_byte);
    combine_us = std::max(combine_us, latency + levels[level].combine * us_per_byte);
  }
  return {dispatch_us + combine_us, levels[host].pair()};
}

bool knows_bandwidth(const Topology& topology) {
  for (int level = 0; level <= topology.find_level(Topology::kHost); ++level) {
    if (topology.level(level).link.bandwidth_gb_s > 0) return true;
  }
  return false;
}

// With three digits.
std::string with_unit(double value, std::array<const char*, 4> units) {
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < units.size(); ++unit) value /= 1000;
  return fmt::format("{:.3g} {}", value, units[unit]);
}

}  // namespace

AlgorithmChoice choose_algorithm(const Topology& topology, const Traffic& traffic) {
  if (topology.num_nodes() == 1) return {Algorithm::kFullmesh, "one node: nothing crosses"};
  // In the order in which equals are preferred.
  constexpr double kEqual = 1 - 1e-9;  // sums of the same terms in another order
  constexpr std::array kCandidates = {Algorithm::kHierarchical, Algorithm::kFullmesh,
                                      Algorithm::kAllgather};
  const bool timed = knows_bandwidth(topology);
  AlgorithmChoice choice{.algorithm = kCandidates[0], .reason = {}};
  double least = 0;
  for (const Algorithm algorithm : kCandidates) {
    const Cost cost = cost_of(topology, level_bytes(topology, traffic, algorithm));
    const double value = timed ? cost.us : cost.bytes;
    if (algorithm == kCandidates[0] || value < least * kEqual)
      choice.algorithm = algorithm, least = value;
    choice.reason += fmt::format("{}{} with {}", choice.reason.empty() ? "" : ", ",
                                 bytes_text(cost.bytes), algorithm_name(algorithm));
    if (timed) choice.reason += fmt::format(" ({})", time_text(cost.us));
  }
  choice.reason = fmt::format(
      "{} nodes: a dispatch and its combine put on the busiest link of a host {}, routing uniform",
      topology.num_nodes(), choice.reason);
  return choice;
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

std::string bytes_text(double bytes) { return with_unit(bytes, {"B", "KB", "MB", "GB"}); }

std::string time_text(double us) { return with_unit(us, {"us", "ms", "s", "ks"}); }

}  // namespace ferry::internal
