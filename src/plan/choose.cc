#include "plan/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace ferry::internal {

namespace {

// The levels that are crossed, down to the host. The bytes of the outermost decide where no
// bandwidth is known: a level outside the host is named for its links, which more ranks share.
struct Levels {
  int outermost, host;
};

Levels crossed_levels(const Topology& topology) {
  int outermost = 0;
  while (topology.level(outermost).num_groups() == 1) ++outermost;
  return {outermost, topology.find_level(Topology::kHost)};
}

// Of one dispatch and its combine, on the levels whose bandwidth is known. Chunks cross all levels
// at the same time, so the slowest counts; but a mate sends on only what has come, so that
// latencies add up. With fullmesh nobody sends on.
double time_of(const Topology& topology, const std::vector<LinkBytes>& bytes, Algorithm algorithm) {
  const auto [outermost, host] = crossed_levels(topology);
  const bool flat = algorithm == Algorithm::kFullmesh;
  double latencies_us = 0, dispatch_us = 0, combine_us = 0;
  for (int level = outermost; level <= host; ++level) {
    const auto [bandwidth, latency, count] = topology.level(level).link;
    const double us_per_byte = bandwidth > 0 ? 1 / (bandwidth * 1e3) : 0;
    const double own_us = flat ? latency : 0;
    latencies_us += latency - own_us;
    dispatch_us = std::max(dispatch_us, own_us + bytes[level].dispatch * us_per_byte);
    combine_us = std::max(combine_us, own_us + bytes[level].combine * us_per_byte);
  }
  return 2 * latencies_us + dispatch_us + combine_us;
}

bool knows_bandwidth(const Topology& topology) {
  const auto [outermost, host] = crossed_levels(topology);
  for (int level = outermost; level <= host; ++level) {
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
  const int outermost = crossed_levels(topology).outermost;
  AlgorithmChoice choice{.algorithm = kCandidates[0], .reason = {}};
  double least = 0;
  for (const Algorithm algorithm : kCandidates) {
    const std::vector<LinkBytes> levels = level_bytes(topology, traffic, algorithm);
    const double bytes = levels[outermost].pair(), us = time_of(topology, levels, algorithm);
    const double value = timed ? us : bytes;
    if (algorithm == kCandidates[0] || value < least * kEqual)
      choice.algorithm = algorithm, least = value;
    choice.reason += fmt::format("{}{} with {}", choice.reason.empty() ? "" : ", ",
                                 bytes_text(bytes), algorithm_name(algorithm));
    if (timed) choice.reason += fmt::format(" ({})", time_text(us));
  }
  choice.reason = fmt::format(
      "{} nodes: a dispatch and its combine put on the busiest link of a {} {}, routing uniform",
      topology.num_nodes(), topology.level(outermost).name, choice.reason);
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
