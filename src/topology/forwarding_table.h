// ForwardingTable: the next hop from one rank towards each rank of another node, and the ranks that
// this rank serves, among the ranks that take part. It is pure data, computed from the Topology.
//
// The mate of a rank in a sibling group has the same position there, or a link joins the two
// (mate.h). A rank sends to its mate in each other group of the outermost level, and in each
// sibling group of the inner levels. Each mate forwards to the ranks of its group by the same rule.
// If groups of the outermost level are joined in two ways, each way has a table of its own.
#pragma once

#include <vector>

#include "ferry/topology.h"

namespace ferry::internal {

struct ForwardingTable {
  ForwardingTable() = default;
  // The table of `rank`. Positions are counted among the ranks that `taking_part` [ranks] marks;
  // any other rank keeps its position among all ranks. With `flat`, only nodes have mates, and the
  // levels outside them are ignored. With `second_way`, this is the table of the second way of the
  // outermost level.
  ForwardingTable(const Topology& topology, int rank, const std::vector<bool>& taking_part,
                  bool flat, bool second_way = false);

  // A level is one of the topology: 0 is the outermost, and larger numbers are further in.
  struct Mate {
    int level, rank;
    bool operator==(const Mate&) const = default;
  };
  // A mate in each sibling group in which a rank takes part. The outermost level comes first.
  std::vector<Mate> mates;
  int outermost = 0;  // the level of the first mate; without mates, the level of the hosts
  std::vector<bool> is_mate;
  // [ranks]: whether this rank serves that rank, which is of another node: its messages end here,
  // directly or through other ranks, and this rank writes its flags for the ranks of this node.
  std::vector<bool> is_served;
  // [ranks]: the mate to which each rank sends what is for this node: its mate in this rank's group
  // of the outermost level at which the two differ. That mate is of this node (this rank, for ranks
  // that send to it directly), or forwards towards this node. It is the rank itself for a rank of
  // this node, and if no rank of that group takes part.
  std::vector<int> last_hop;
  // [ranks]: the mate through which this rank reaches each rank, as an index of `mates`. It is -1
  // for a rank of this node, or of a group in which no rank takes part.
  std::vector<int> next_hop;
  // [ranks]: the lowest rank of the subtree that is reached through that mate. For ranks of this
  // node it is the lowest rank of the node.
  std::vector<int> subtree;
};

}  // namespace ferry::internal
