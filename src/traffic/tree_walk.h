// The walk of all tokens down a tree of ranks, as the engine takes it, and the bytes that each rank
// puts on the links of each level.
#pragma once

#include <vector>

#include "ferry/topology.h"
#include "traffic/traffic.h"

namespace ferry::internal {

// How many copies of a token cross a hop.
enum class TokenCopies {
  kPerRank,   // one for each rank behind it that wants the token
  kPerGroup,  // one if any rank behind it does; the rank that gets it passes it on
  kAll,       // one, wanted or not
};

TokenCopies copies_of(Algorithm algorithm) noexcept;

// Bytes of a dispatch, and of its combine, which goes in the other direction.
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

// All hops between sibling groups of one level: of a network if the level is "host" or outside it,
// else loads and stores.
struct TreeStep {
  int level = 0;
  bool network = false;
  bool passed_on = false;            // by mates, else by the sources themselves
  std::vector<TreeLoad> ranks = {};  // [ranks]
};

// The steps in order, from the outermost level in.
std::vector<TreeStep> tree_steps(const Topology& topology, const Traffic& traffic,
                                 const Demand& demand, TokenCopies copies);

// Whether the hops of a step cross the links of a level.
bool crosses(const Topology& topology, const TreeStep& step, int level);
// The bytes of a step on each link of a level that ranks use, however many links there are.
std::vector<TreeLoad> on_links(const Topology& topology, const TreeStep& step, int level);
// Whether a step moves bytes that another one brought: a mate passes on rows that came over an
// outer level, or over the network. `combine`: in combine, where sums go the other way.
bool waits_for(const TreeStep& step, const TreeStep& other, bool combine);
// The latency of a hop: that of the slowest level that it crosses.
double latency_us(const Topology& topology, const TreeStep& step);

// [levels]: bytes of the busiest link of a level, in its busier direction, routing uniform. From
// level "host" outwards these are the bytes that cross the network, which depend on the algorithm;
// inside they are loads and stores, of sources and mates.
struct LinkBytes {
  double dispatch = 0;
  double combine = 0;
  double pair() const noexcept { return dispatch + combine; }
};
std::vector<LinkBytes> level_bytes(const Topology& topology, const Traffic& traffic,
                                   Algorithm algorithm);

}  // namespace ferry::internal
