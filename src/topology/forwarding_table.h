// ForwardingTable: the next hop from one rank towards each rank of another node, and the ranks that
// it serves, among those that take part. A rank's mate in a sibling group is the rank that has the
// same position there, or that links join it with (mate.h). What a rank sends goes to its mate in
// each other group of the outermost level, and in each sibling group of the levels further in; each
// mate serves its group in the same way. Where groups of the outermost level are joined in two
// ways, each way has a table of its own. Pure data, computed from the Topology; made by group and
// exchange.
#pragma once

#include <vector>

#include "ferry/topology.h"

namespace ferry::internal {

struct ForwardingTable {
  ForwardingTable() = default;
  // Of `rank`. `taking_part` [ranks]: positions are counted among those that do; a rank that does
  // not keeps its position among all. `flat`: only nodes have mates, whatever levels are outside.
  // `second_way`: by that of the outermost level.
  ForwardingTable(const Topology& topology, int rank, const std::vector<bool>& taking_part,
                  bool flat, bool second_way = false);

  // Levels are those of the topology: 0 is the outermost, and a larger one is further in.
  struct Mate {
    int level, rank;
    bool operator==(const Mate&) const = default;
  };
  std::vector<Mate> mates;  // in each group where a rank takes part; the outermost level first
  int outermost = 0;        // level of the first mate; the hosts', where there is none
  std::vector<bool> is_mate;
  // [ranks] its messages end here, maybe by other ranks: I write its flags down for my node.
  std::vector<bool> is_served;
  // [ranks] who passes the messages of each on towards this node: itself, if it is of this node or
  // sends here directly.
  std::vector<int> last_hop;
  // [ranks] the mate by whom I reach each, as an index of `mates`; -1: of my node, or nobody takes
  // part there.
  std::vector<int> next_hop;
  // [ranks] the lowest rank of the subtree that is reached by that mate; of my node: its lowest.
  std::vector<int> subtree;
};

}  // namespace ferry::internal
