// Balance: which experts get more than one replica, and which rank holds each replica, by the loads
// of the experts. These are the steps of EPLB for one layer, with the results of EPLB. Pure
// functions.
#pragma once

#include <span>
#include <vector>

namespace ferry::internal {

// For each item its pack, and its position in that pack.
struct Packed {
  std::vector<int> pack, position;
};
// Packs equally many items into each pack: the heaviest item first, each into the lightest pack
// that has room. Throws Error(kInvalidArgument) when num_packs does not divide the items.
Packed pack_evenly(std::span<const float> weights, int num_packs);

// For each slot of a rank the expert that it holds, and the index of the replica of that expert.
struct ReplicaSlots {
  std::vector<int> expert, replica;
};
// Gives each expert one replica, and each further replica to the expert that then has the largest
// load per replica. Throws Error(kInvalidArgument) for fewer slots than experts.
ReplicaSlots replicate(std::span<const float> loads, int num_slots);

struct BalanceShape {
  int num_slots = 0;   // slots of all ranks together
  int num_groups = 1;  // groups of experts, each in one node
  int num_nodes = 1;   // if it does not divide num_groups, both count as 1
  int num_ranks = 1;
};
// The slots of rank 0, then those of rank 1, and so on. Throws Error(kInvalidArgument) for counts
// that do not divide, for fewer slots than experts, and for a load that is negative or not finite.
ReplicaSlots balance(std::span<const float> loads, BalanceShape shape);

}  // namespace ferry::internal
