// Makes the environment variables that `ferry launch` gives to its ranks. They are those of
// torchrun, so that a program runs under both, FERRY_SECRET, and between hosts FERRY_ADDR.
//
// OMP_NUM_THREADS stays as the caller set it. Three kinds of variables are removed: those that
// Group::from_environment would read before the variables of torchrun; those of an outer launch,
// which name the place of another rank; and those of an outer torchrun, with which torch would join
// the store of that torchrun.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"

namespace ferry::tools {

// The values that all ranks of one launch share.
struct LaunchIdentity {
  std::string master_addr = "127.0.0.1";
  std::string run_id;   // unique: the name of the launch and a random part
  std::string secret;   // FERRY_SECRET of the caller, or 128 random bits
  int master_port = 0;  // even; ferry's own rendezvous uses the next port
  // FERRY_ADDR if ranks are on several hosts, else empty. That of ranks that start together names
  // the first host, where rank 0 is; that of newcomers names all hosts, since members of their
  // group may be on any of them.
  std::string ferry_addr, newcomers_addr;
  std::string port_reason;  // how master_port was chosen
  // While this descriptor is open, no other launch on this host chooses the same port. Any end of
  // the process closes it.
  std::shared_ptr<const internal::Descriptor> port_claim;
};

// The ranks of a launch that are on one host, numbered without gaps.
struct HostShare {
  int first_rank = 0, num_ranks = 0;
  int world_size = 0;  // ranks of the launch
  int host = 0, num_hosts = 1;
};

// Chooses the ports and the secret of a launch. `hosts` are the addresses of several hosts, and
// empty on one host. `ferry_port` is the port of FERRY_ADDR; with 0 it is the one after
// MASTER_PORT. Throws ferry::Error when no port is free.
LaunchIdentity make_identity(const std::string& name, const std::vector<std::string>& hosts = {},
                             int ferry_port = 0);

// The environment of one rank of this host, as "NAME=value": this process's environment with the
// changes that the head of this file describes.
// `newcomer`: the rank was started before, and its group goes on (FERRY_NEWCOMER).
std::vector<std::string> rank_environment(const LaunchIdentity& identity, const HostShare& share,
                                          int local_rank, bool newcomer);
// The environment of a spare (bootstrap/spare.h): that of a rank without the variables of its
// place.
std::vector<std::string> spare_environment(const LaunchIdentity& identity, const HostShare& share);
// The variables that a spare gets with the place of a lost rank, as lines NAME=value.
std::string place_of_rank(const LaunchIdentity& identity, const HostShare& share, int local_rank);

}  // namespace ferry::tools
