// The environment variables that `ferry launch` gives to its ranks: those of torchrun, so that the
// same program runs under both, and FERRY_SECRET.
//
// OMP_NUM_THREADS stays unchanged: the caller knows the program. Variables that would outrank
// torchrun's in Group::from_environment, or that come from an outer torchrun and would make
// torch join its store, are removed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"

namespace ferry::tools {

// What all ranks of one launch share.
struct LaunchIdentity {
  std::string master_addr = "127.0.0.1";
  std::string run_id;       // the launch's name and a random part: unique per launch
  std::string secret;       // FERRY_SECRET: the caller's own, else 128 random bits
  int master_port = 0;      // even: the next one is for ferry's own rendezvous
  std::string ferry_addr;   // FERRY_ADDR where ranks are on several hosts, else empty
  std::string port_reason;  // how master_port was chosen
  // Keeps other launches from choosing the same port; released by any exit.
  std::shared_ptr<const internal::Descriptor> port_claim;
};

// The ranks of a launch that are on one host, numbered without gaps.
struct HostShare {
  int first_rank = 0, num_ranks = 0;
  int world_size = 0;  // ranks of the launch
  int host = 0, num_hosts = 1;
};

// Throws ferry::Error when no port is free.
// `hosts_address`: the first of several hosts, empty on one; `ferry_port`: of its FERRY_ADDR, 0:
// the one after MASTER_PORT.
LaunchIdentity make_identity(const std::string& name, const std::string& hosts_address = "",
                             int ferry_port = 0);

// "NAME=value" for one rank of this host: this process's environment, changed as said above.
std::vector<std::string> rank_environment(const LaunchIdentity& identity, const HostShare& share,
                                          int local_rank);

}  // namespace ferry::tools
