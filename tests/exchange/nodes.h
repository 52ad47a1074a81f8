// Nodes: which ranks of a test share memory. Ranks of different nodes use the network, even on one
// machine. Drawn by the conformance suites between nodes; the other tests run on one node, or on
// several as FERRY_TEST_NODES says.
#pragma once

#include <string>
#include <vector>

#include "oracle/reference.h"

namespace ferry::test {

struct Nodes {
  std::string topology;                      // GroupOptions::topology; empty: one node
  std::vector<int> of_rank;                  // [R]
  std::vector<std::vector<int>> outer = {};  // [R]: groups that the node is in, from the outside in

  bool several() const;
  // Says where a rank is.
  void place(int rank, internal::RankInput& input) const;
};

Nodes nodes_of(const std::string& topology);

// Of "host:2,rank:3+5": the first three ranks, then five.
Nodes nodes_of_sizes(const std::vector<int>& sizes);

// What the conformance suites between nodes run on.
std::vector<Nodes> every_shape();

// As many nodes as FERRY_TEST_NODES says, one if it says nothing; their sizes as even as can be,
// the last ones one more. At most one node per rank. "racks": two racks, in which each
// rank is a node; of three ranks the second is the one that passes on for the first. "inner": the
// same the other way round; of three the first passes on to the second.
Nodes test_nodes(int num_ranks);

}  // namespace ferry::test
