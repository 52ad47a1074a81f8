// Places: each rank of several hosts sends a text that says where it runs. From all texts a rank
// computes the ranks of its host, the address at which they meet, and which ranks share memory.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/hello.h"
#include "bootstrap/rendezvous.h"

namespace ferry::internal {

// Returns a nonce, followed by the identity of the processes that share memory with this rank. The
// nonce is fresh if this rank is the `lowest` of those that meet.
std::string own_place(const Hello& self, bool lowest);

struct HostMeeting {
  std::vector<int> ranks;  // the ranks of this host, ascending, this one among them
  std::string address;     // the address at which they meet, a name that cannot be guessed
  std::vector<int> nodes;  // [ranks of the group], as in Rendezvous::nodes()
};

// `places` has the texts of ranks.members, and `mine` is the text that `rank` sent. A rank that is
// absent is of the node that the topology gives it. Throws Error(kMismatch) that names a rank whose
// text is not a place, and Error(kInvalidArgument) that names an absent rank without a node.
HostMeeting host_meeting(const std::vector<std::string>& places, int rank, const std::string& mine,
                         const GroupRanks& ranks);

}  // namespace ferry::internal
