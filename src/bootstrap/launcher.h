// Which launcher started this process, and where rank 0 of a job that spans hosts is found: pure
// functions of environment variables and of the parent's pid.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "base/environment.h"
#include "bootstrap/local_ranks.h"

namespace ferry::internal {

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 0;      // 0: the launcher does not set it
  LocalLaunch local = {};  // set for ranks of torchrun and `ferry launch`
  // A text that is equal on all ranks of this job, and different for other jobs of this user.
  std::string job;
  // The address at which the ranks meet: the job's name on one host, "tcp://host:port" between
  // hosts.
  std::string address;
  bool newcomer = false;  // FERRY_NEWCOMER: takes the place of a rank that a running group lacks
  // Set if FERRY_GROUP_SIZE gives the group more ranks than the job has: the ranks of the job, with
  // which the group begins. Then `size` is that of the group. Empty: all.
  std::vector<int> members = {};
  std::string launcher;  // "address", "torchrun", "openmpi", "hydra", "pmix", "slurm"
  std::string reason;    // such as "RANK=3 and WORLD_SIZE=8 are set"
};

// Returns the first launcher whose variables are all set, in the order of Group::from_environment.
//
// FERRY_ADDR=tcp://host:port gives only the address. Without FERRY_RANK and FERRY_SIZE, a launcher
// gives rank and size. A job that spans hosts meets at FERRY_ADDR, or else at tcp://host:port. The
// host is MASTER_ADDR or the first of Slurm's nodes. The port is FERRY_PORT, else MASTER_PORT + 1
// (torch uses MASTER_PORT itself), else a port that is computed from Slurm's job and step.
//
// Hydra does not name a job in the environment. But all ranks of a host are children of one
// hydra_pmi_proxy, so the pid of the parent is the job's name. A wrapper script has to `exec` the
// program, or to set FERRY_ADDR.
//
// FERRY_GROUP_SIZE is the size of a group that begins with the ranks of the job, and has places for
// more.
//
// Throws Error(kInvalidArgument). It names the variable and its value if one is malformed (RANK=x,
// RANK >= WORLD_SIZE), and all variables that were looked up if no launcher is found.
Launch launch_from_environment(const GetEnvironment& get, pid_t parent = getppid());

// Returns the first name in one of Slurm's lists: "gpu03" for "gpu[03-07,12],login1".
std::string first_host(const std::string& nodes);

}  // namespace ferry::internal
