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
  // [ranks]: whether this rank is the last hop for messages of that rank, which is of another node,
  // directly or through other ranks. This rank then writes that rank's flags for the ranks of this
  // node.
  std::vector<bool> is_served;
  // [ranks]: the rank that forwards the messages of each rank towards this node. It is the rank
  // itself if it is of this node or sends to this node directly.
  std::vector<int> last_hop;
  // [ranks]: the mate through which this rank reaches each rank, as an index of `mates`. It is -1
  // for a rank of this node, or of a group in which no rank takes part.
  std::vector<int> next_hop;
  // [ranks]: the lowest rank of the subtree that is reached through that mate. For ranks of this
  // node it is the lowest rank of the node.
  std::vector<int> subtree;
};

}  // namespace ferry::internal
