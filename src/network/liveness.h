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
  // Must be made while all of `pids` are known to run. A pidfd belongs to one process, so another
  // process with the same pid is not mistaken for it. Without pidfds (old kernels, few
  // descriptors), the start time in /proc identifies the process.
  explicit Liveness(const std::vector<pid_t>& pids);

  // Returns false once the process has ended, reaped or not.
  bool alive(int rank) const noexcept;
  // Sends SIGKILL to the process, which may end later. Returns 0, or the errno of the kernel's
  // refusal; ESRCH: it has ended.
  int kill(int rank) const noexcept;
  pid_t pid(int rank) const noexcept { return processes_[static_cast<std::size_t>(rank)].pid; }

 private:
  struct Process {
    pid_t pid;
    Descriptor pidfd;              // if empty, start_time decides
    std::uint64_t start_time = 0;  // 0: unknown
  };
  std::vector<Process> processes_;
};

}  // namespace ferry::internal
