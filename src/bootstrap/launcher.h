// Which launcher started this process, and where rank 0 of a job that spans hosts is found: pure
// functions of environment variables and of the parent's pid.
#pragma once

#include <unistd.h>

#include <string>

#include "base/environment.h"
#include "bootstrap/local_ranks.h"

namespace ferry::internal {

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 0;      // 0: not known from the launcher
  LocalLaunch local = {};  // of torchrun's ranks, and so those of `ferry launch`
  // Text that is equal on all ranks of this job and different for other jobs of this user.
  std::string job;
  // Where the ranks meet: the job's name on one host, "tcp://host:port" across hosts.
  std::string address;
  std::string launcher;  // "address", "torchrun", "openmpi", "hydra", "pmix", "slurm"
  std::string reason;    // such as "RANK=3 and WORLD_SIZE=8 are set"
};

// The first launcher whose variables are all there, in the order of Group::from_environment.
// FERRY_ADDR=tcp://host:port gives the address only: without FERRY_RANK and FERRY_SIZE rank and
// size are a launcher's. A job that spans hosts meets at that address, else at tcp://host:port:
// host is MASTER_ADDR or the first of Slurm's nodes, port FERRY_PORT, else MASTER_PORT + 1 (the
// port itself is torch's), else one made from Slurm's job and step. Throws Error (kInvalidArgument)
// naming the variable and its value when one is malformed (RANK=x, RANK >= WORLD_SIZE), or when
// nothing is found (naming everything that was looked for). Hydra does not name a job in the
// environment, but all ranks of a host are children of one hydra_pmi_proxy, so the parent's pid is
// the job's name. A wrapper script has to `exec` the program, or to set FERRY_ADDR.
Launch launch_from_environment(const GetEnvironment& get, pid_t parent = getppid());

// The first name of a list of Slurm's such as "gpu[03-07,12],login1": "gpu03".
std::string first_host(const std::string& nodes);

}  // namespace ferry::internal
