// The parts of `ferry topology`, a file each: the levels that are found, the JSON form of a
// topology, the report, and pictures.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/config.h"
#include "ferry/group.h"
#include "ferry/topology.h"
#include "tools/report.h"

namespace ferry::tools {

// What a hardware thread belongs to; numbers mean nothing but themselves.
struct Place {
  std::uint64_t numa = 0;
  std::uint64_t cache = 0;  // the last-level one

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy takes the zero of <=> for a pointer
  auto operator<=>(const Place&) const = default;
};

// The places of the hardware threads that this process may use, from hwloc. Throws
// std::runtime_error.
std::vector<Place> places_here();

// Text for Topology::parse: rank i of n on the hardware thread i * threads / n, sorted by place. A
// level is left out where it divides nothing.
std::string found_levels(std::vector<Place> places, int num_ranks);

// One tree of the levels that were found on each host.
std::string join_hosts(const std::vector<Topology>& hosts);

// Collective: the hosts of a group, with the levels of each. Throws ferry::Error.
std::string found_in_job(Group& group);

// {"levels": [{"name": "host", "fanout": 2, "bandwidth_gb_s": 12.5, "latency_us": 5, "links": 1},
// ..]}, where "fanout" may be a list with one number for each group above, and what a link lacks is
// unknown. Other keys beside "levels" are ignored, so the output of `ferry topology --json` is
// read, too. Throws std::invalid_argument.
Topology topology_from_json(const std::string& text);
Report::Json levels_json(const Topology& topology);

Report topology_report(const Topology& topology, const ExchangeConfig& config);

// Text for pictures. Ranks of a group: "0-3,8"; a link: "8 links of 50 GB/s, 5 us", empty where
// nothing is known; and a line per level: "host: fullmesh 38.9 MB, ..".
std::string ranks_text(const Topology& topology, int group, int level);
std::string link_text(const Topology::Link& link);
std::vector<std::string> traffic_lines(const Topology& topology, const ExchangeConfig& config);

// Pictures with `lines` below: SVG (boxes in boxes) and DOT (for Graphviz). Equal colours are
// mates: ranks at the same position of their nodes, which serve each other's groups.
std::string topology_svg(const Topology& topology, const std::vector<std::string>& lines);
std::string topology_dot(const Topology& topology, const std::vector<std::string>& lines);

}  // namespace ferry::tools
