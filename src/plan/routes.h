// Routes: over which links the tokens of a source reach the ranks that want them, and what each hop
// carries. One tree per source; combine goes the same hops back. Called by build.h; calls graph.h
// and routing.h.
#pragma once

#include <string>
#include <vector>

#include "plan/graph.h"
#include "plan/routing.h"
#include "traffic/tree_walk.h"

namespace ferry::internal {

// Some of the tokens go one way, some another: by which links, and which share of them.
struct Way {
  std::vector<bool> closed = {};  // [kinds of links]: not taken
  double share = 1;
};

struct Strategy {
  std::string name;
  TokenCopies copies = TokenCopies::kPerGroup;
  std::vector<Way> ways = {};
};

struct Hop {
  int from = 0, to = 0;
  int kind = 0;     // of link
  int parent = -1;  // an earlier hop, which brought what this one passes on; -1: the source's own
  double dispatch_bytes = 0, combine_bytes = 0;
  std::int64_t count = 1;  // of hops alike
};

// What one source's tokens put on a hop with these ranks behind it.
PairBytes hop_bytes(const Traffic& traffic, TokenCopies copies, const Routing::Wanted& wanted);

class Routes {
 public:
  Routes(const Graph& graph, const Traffic& traffic, const Routing& routing)
      : graph_(graph), traffic_(traffic), routing_(routing) {}

  // A hop comes behind its parent.
  std::vector<Hop> of(int source, const Strategy& strategy, const Way& way) const;

 private:
  const Graph& graph_;
  const Traffic& traffic_;
  const Routing& routing_;
};

}  // namespace ferry::internal
