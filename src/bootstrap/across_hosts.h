// Where rank 0 of a job that spans hosts is found, from what its launcher says. A pure function of
// environment variables. Called by environment.cc.
#pragma once

#include <string>

#include "bootstrap/environment.h"

namespace ferry::internal {

// "tcp://host:port" of a job of several hosts that `launch.launcher` started, equal on all ranks:
// host is MASTER_ADDR or the first of Slurm's nodes, port FERRY_PORT, else MASTER_PORT + 1 (the
// port itself is torch's), else one made from Slurm's job and step. Throws Error(kInvalidArgument)
// that says what to set where the launcher does not tell; `why` says what showed several hosts.
std::string address_across_hosts(const GetEnvironment& get, const Launch& launch,
                                 const std::string& why);

// The first name of a list such as "gpu[03-07,12],login1": "gpu03".
std::string first_host(const std::string& nodes);

}  // namespace ferry::internal
