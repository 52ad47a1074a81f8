// Reads which launcher started this process: a pure function of environment variables and of the
// parent's pid. Called by Group::from_environment; calls nothing of ferry but Error.
#pragma once

#include <unistd.h>

#include <functional>
#include <optional>
#include <string>

namespace ferry::internal {

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 0;  // 0: the launcher does not say
  std::string
      job;  // text that is equal on all ranks of this job and different for other jobs of this user
  std::string launcher;  // "address", "torchrun", "openmpi", "hydra", "pmix", "slurm"
  std::string reason;    // such as "RANK=3 and WORLD_SIZE=8 are set"
};

using GetEnvironment = std::function<std::optional<std::string>(const std::string& name)>;

// The first launcher whose variables are all there, in the order of Group::from_environment. Throws
// Error (kInvalidArgument) naming the variable and its value when one is malformed (RANK=x, RANK >=
// WORLD_SIZE), when the job spans hosts, or when nothing is found (naming everything that was
// looked for). Hydra names its jobs nowhere in the environment, but all ranks of a host are
// children of one hydra_pmi_proxy, so there the parent's pid is the job's name. A wrapper script
// has to `exec` the program, or to set FERRY_ADDR.
Launch launch_from_environment(const GetEnvironment& get, pid_t parent = getppid());

}  // namespace ferry::internal
