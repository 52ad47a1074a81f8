// Places: what each rank of several hosts says of where it is, and what this rank makes of it: who
// is on its host, where they meet, which ranks share memory. Called by processes.cc.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/hello.h"

namespace ferry::internal {

// A fresh nonce, and what shares memory with this rank.
std::string own_place(const Hello& self);

struct HostMeeting {
  std::vector<int> ranks;  // of this host, ascending, this one among them
  std::string address;     // where they meet: a name that nobody can guess
  std::vector<int> nodes;  // [ranks of the group], as Rendezvous::nodes()
};

// `places`: of all ranks. `mine`: what `rank` said. `split` [ranks]: nodes of the topology. Throws
// Error(kMismatch) naming a rank whose place is none.
HostMeeting host_meeting(const std::vector<std::string>& places, int rank, const std::string& mine,
                         const std::vector<int>& split);

}  // namespace ferry::internal
