// The levels of this machine, as hwloc sees them, for ranks that are spread evenly over its
// hardware threads. Called by topology.cc; calls hwloc.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace ferry::tools
