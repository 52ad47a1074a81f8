// Places: the text in which each rank of several hosts sends where it runs. From all of them a rank
// computes the ranks of its host, where these meet, and which ranks share memory.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/hello.h"

namespace ferry::internal {

// A fresh nonce, and the identity of the processes that share memory with this rank.
std::string own_place(const Hello& self);

struct HostMeeting {
  std::vector<int> ranks;  // of this host, ascending, this one among them
  std::string address;     // where they meet: a name that cannot be guessed
  std::vector<int> nodes;  // [ranks of the group], as Rendezvous::nodes()
};

// `places`: the texts of all ranks. `mine`: the text that `rank` sent. `split` [ranks]: nodes of
// the topology. Throws Error(kMismatch) naming a rank whose text is not a place.
HostMeeting host_meeting(const std::vector<std::string>& places, int rank, const std::string& mine,
                         const std::vector<int>& split);

}  // namespace ferry::internal
