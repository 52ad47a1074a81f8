// Routes: over which hops the tokens of a source reach the ranks that want them, and what each hop
// carries. One tree per source; combine goes the same hops back. Called by build.h; calls graph.h
// and routing.h.
#pragma once

#include <string>
#include <vector>

#include "plan/graph.h"
#include "plan/routing.h"
#include "plan/traffic.h"

namespace ferry::internal {

// How many copies of a token cross a hop.
enum class Copies {
  kPerRank,   // one for each rank behind it that wants the token
  kPerGroup,  // one if any rank behind it does: whoever gets it passes it on
  kAll,       // one, wanted or not
};

// Some of the tokens go one way, some another: by which links, and which share of them.
struct Way {
  std::vector<bool> closed = {};  // [kinds of links]: not taken
  double share = 1;
};

struct Strategy {
  std::string name;
  Copies copies = Copies::kPerGroup;
  std::vector<Way> ways = {};
};

struct Hop {
  int from = 0, to = 0;
  int kind = -1;    // of link; -1: over the tree's own links
  int parent = -1;  // an earlier hop, which brought what this one passes on; -1: the source's own
  double dispatch_bytes = 0, combine_bytes = 0;
};

class Routes {
 public:
  Routes(const Graph& graph, const Traffic& traffic, const Routing& routing)
      : graph_(graph), traffic_(traffic), routing_(routing) {}

  // A hop comes behind its parent.
  std::vector<Hop> of(int source, const Strategy& strategy, const Way& way) const;

 private:
  std::vector<Hop> over_links(int source, const Strategy& strategy, const Way& way) const;
  std::vector<Hop> over_tree(int source, Copies copies) const;
  void serve(int holder, int level, int hop, Copies copies, std::vector<Hop>& hops) const;
  void store(int holder, int hop, std::vector<Hop>& hops) const;

  // Between nodes of a tree: what a token sends to some ranks, and what comes home.
  void set_bytes(Hop& hop, std::span<const int> ranks, Copies copies) const;
  Routing::Ranks set_of(std::span<const int> ranks) const;

  const Graph& graph_;
  const Traffic& traffic_;
  const Routing& routing_;
};

}  // namespace ferry::internal
