// Nodes: which ranks of a test share memory. Ranks of different nodes use the network, even on one
// machine. The conformance suites between nodes run on every_shape(); the other tests run on one
// node, or on several as FERRY_TEST_NODES says.
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

// Nodes of these sizes, in the order of ranks: "host:2,rank:3+5" has the first three ranks, then
// five.
Nodes nodes_of_sizes(const std::vector<int>& sizes);

// What the conformance suites between nodes run on.
std::vector<Nodes> every_shape();

// The nodes that FERRY_TEST_NODES says. A number: so many nodes, at most one for each rank, of
// sizes that differ by one at most, larger ones last; 1 if it is not set. "racks", with more than
// two ranks: two racks in which each rank is a node, the second one with one node more if the ranks
// are odd; of three ranks, rank 1 passes messages of rank 0 on. "inner": the same with the first
// rack larger; of three ranks, rank 0 passes messages on to rank 1.
Nodes test_nodes(int num_ranks);

}  // namespace ferry::test
