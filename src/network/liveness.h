// Liveness: whether the processes of the other ranks still run. Owns their pidfds. Every wait of
// the group calls alive() every few milliseconds.
#pragma once

#include <cstdint>
#include <vector>

#include "base/descriptor.h"

namespace ferry::internal {

class Liveness {
 public:
  Liveness() = default;
  // To be made while all of `pids` are known to run. A pidfd stays with its process, so a reused
  // pid is never taken for it; without pidfds (old kernels, few descriptors) the start time in
  // /proc identifies the process.
  explicit Liveness(const std::vector<pid_t>& pids);

  // False once the process has ended, reaped or not.
  bool alive(int rank) const noexcept;
  pid_t pid(int rank) const noexcept { return processes_[static_cast<std::size_t>(rank)].pid; }

 private:
  struct Process {
    pid_t pid;
    Descriptor pidfd;              // empty: start_time decides
    std::uint64_t start_time = 0;  // 0: unknown
  };
  std::vector<Process> processes_;
};

}  // namespace ferry::internal
