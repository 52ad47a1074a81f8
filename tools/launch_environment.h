// The environment variables that `ferry launch` gives to its ranks: those of torchrun, so that the
// same program runs under both, and FERRY_SECRET. Called by launch.cc and launch_job.cc.
//
// OMP_NUM_THREADS is left as it is: torchrun's 1 is a guess about the program, and the caller's
// shell knows better. Variables that would outrank torchrun's in Group::from_environment, or that
// an outer torchrun left behind and that would tell torch to join its store, are removed.
#pragma once

#include <string>
#include <vector>

#include "transport/socket.h"

namespace ferry::tools {

// What all ranks of one launch share.
struct LaunchIdentity {
  std::string run_id;  // the launch's name and a random part: unique per launch
  std::string secret;  // FERRY_SECRET: the caller's own, else 128 random bits
  int master_port = 0;
  std::string port_reason;  // how master_port was chosen
  internal::Descriptor
      port_claim;  // keeps other launches from choosing the same port; released by any exit
};

// Throws ferry::Error when no port is free.
LaunchIdentity make_identity(const std::string& name);

// "NAME=value" for one rank: this process's environment, changed as said above.
std::vector<std::string> rank_environment(const LaunchIdentity& identity, int rank, int num_ranks);

}  // namespace ferry::tools
