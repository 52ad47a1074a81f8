// The paths of all tokens down a tree of ranks, as the exchange sends them, and the bytes of each
// rank on the links of each level.
#pragma once

#include <vector>

#include "ferry/topology.h"
#include "traffic/traffic.h"

namespace ferry::internal {

// The number of copies of a token that cross a hop.
enum class TokenCopies {
  kPerRank,   // one for each rank beyond the hop that needs the token
  kPerGroup,  // one if such a rank exists; the receiver passes it on
  kAll,       // always one
};

TokenCopies copies_of(Algorithm algorithm) noexcept;

// The bytes of a dispatch, and of its combine in the other direction.
struct PairBytes {
  double dispatch = 0, combine = 0;

  PairBytes& operator+=(const PairBytes& other) {
    dispatch += other.dispatch, combine += other.combine;
    return *this;
  }
};
struct TreeLoad {
  PairBytes out, in;
};

// All hops between sibling groups of one level: network messages if the level is "host" or outside
// "host", else loads and stores.
struct TreeStep {
  int level = 0;
  bool network = false;
  bool passed_on = false;            // sent by mates; else by the sources themselves
  std::vector<TreeLoad> ranks = {};  // [ranks]
};

// The steps in order, from the outermost level to the innermost.
std::vector<TreeStep> tree_steps(const Topology& topology, const Traffic& traffic,
                                 const Demand& demand, TokenCopies copies);

// Whether the hops of a step cross the links of a level.
bool crosses(const Topology& topology, const TreeStep& step, int level);
// The bytes of a step on each link of a level that ranks use.
std::vector<TreeLoad> on_links(const Topology& topology, const TreeStep& step, int level);
// Whether `step` moves bytes that `other` brought. In dispatch a mate passes on rows that came over
// the network at an outer level; with `combine`, the sums go back the same way.
bool waits_for(const TreeStep& step, const TreeStep& other, bool combine);
// The latency of a hop: the largest one of the levels that it crosses.
double latency_us(const Topology& topology, const TreeStep& step);

// [levels]: the bytes of the busiest link of a level, in its busier direction, for uniform routing.
// From level "host" outwards they cross the network, and depend on the algorithm. Inside "host"
// they are loads and stores of sources and mates.
struct LinkBytes {
  double dispatch = 0;
  double combine = 0;
  double pair() const noexcept { return dispatch + combine; }
};
std::vector<LinkBytes> level_bytes(const Topology& topology, const Traffic& traffic,
                                   Algorithm algorithm);

}  // namespace ferry::internal
