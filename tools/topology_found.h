// The levels of this machine, as hwloc sees them, for ranks that are spread evenly over its
// hardware threads; and of all machines of a job. Called by topology.cc; calls hwloc.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/group.h"
#include "ferry/topology.h"

namespace ferry::tools {

// What a hardware thread belongs to; numbers mean nothing but themselves.
struct Place {
  std::uint64_t numa = 0;
  std::uint64_t cache = 0;  // the last-level one

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy takes the zero of <=> for a pointer
  auto operator<=>(const Place&) const = default;
};

// Of the hardware threads that this process may use. Throws std::runtime_error.
std::vector<Place> places_here();

// Text for Topology::parse: rank i of n on the hardware thread i * threads / n, sorted by place. A
// level is left out where it divides nothing.
std::string found_levels(std::vector<Place> places, int num_ranks);

// One tree of the levels that were found on each host.
std::string join_hosts(const std::vector<Topology>& hosts);

// Collective: hosts as the ranks of a group met from them, with the levels of each. Throws
// ferry::Error.
std::string found_in_job(Group& group);

}  // namespace ferry::tools
