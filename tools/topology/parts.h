// The parts of `ferry topology`. Each has its own file: the levels that are found, the JSON form,
// the report, and the pictures.
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

// The NUMA domain and the cache of a hardware thread. The numbers only identify them.
struct Place {
  std::uint64_t numa = 0;
  std::uint64_t cache = 0;  // the last-level cache

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy takes the zero of <=> for a pointer
  auto operator<=>(const Place&) const = default;
};

// The places of the hardware threads that this process may use, read from hwloc. Throws
// std::runtime_error.
std::vector<Place> places_here();

// Returns a text for Topology::parse. Rank i of n runs on the hardware thread with index i *
// threads / n, in the order of places. A level that divides nothing is omitted.
std::string found_levels(std::vector<Place> places, int num_ranks);

// Joins the levels that were found on each host in one tree.
std::string join_hosts(const std::vector<Topology>& hosts);

// Collective: returns the text of a tree with all hosts of a group and the levels of each. Throws
// ferry::Error.
std::string found_in_job(Group& group);

// Reads {"levels": [{"name": "host", "fanout": 2, "bandwidth_gb_s": 12.5, "latency_us": 5, "links":
// 1}, ..]}. "fanout" may be a list with one number for each group of the level above. A property
// that a link lacks is unknown. Keys beside "levels" are ignored, so that this also reads the
// output of `ferry topology --json`. Throws std::invalid_argument.
Topology topology_from_json(const std::string& text);
Report::Json levels_json(const Topology& topology);

Report topology_report(const Topology& topology, const ExchangeConfig& config);

// Texts for pictures. ranks_text gives the ranks of a group, "0-3,8". link_text gives "8 links of
// 50 GB/s, 5 us", or nothing if all of it is unknown. traffic_lines gives a line for each level:
// "host: fullmesh 38.9 MB, ..".
std::string ranks_text(const Topology& topology, int group, int level);
std::string link_text(const Topology::Link& link);
std::vector<std::string> traffic_lines(const Topology& topology, const ExchangeConfig& config);

// Draws pictures with `lines` below: SVG with nested boxes, and DOT for Graphviz. Ranks at the same
// position of their nodes have the same colour; they are mates unless the topology joins other
// positions (Link::mates_xor, Link::mates).
std::string topology_svg(const Topology& topology, const std::vector<std::string>& lines);
std::string topology_dot(const Topology& topology, const std::vector<std::string>& lines);

}  // namespace ferry::tools
