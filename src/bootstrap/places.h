// Places: each rank of several hosts sends a text that says where it runs. From all texts a rank
// computes the ranks of its host, the address at which they meet, and which ranks share memory.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/hello.h"

namespace ferry::internal {

// Returns a fresh nonce, followed by the identity of the processes that share memory with this
// rank.
std::string own_place(const Hello& self);

struct HostMeeting {
  std::vector<int> ranks;  // the ranks of this host, ascending, this one among them
  std::string address;     // the address at which they meet, a name that cannot be guessed
  std::vector<int> nodes;  // [ranks of the group], as in Rendezvous::nodes()
};

// `places` has the texts of all ranks, and `mine` is the text that `rank` sent. `split` [ranks] has
// the nodes of the topology. Throws Error(kMismatch) that names a rank whose text is not a place.
HostMeeting host_meeting(const std::vector<std::string>& places, int rank, const std::string& mine,
                         const std::vector<int>& split);

}  // namespace ferry::internal
