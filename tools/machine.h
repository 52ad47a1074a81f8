// Facts about this machine and the part of it that this process may use, as the kernel and hwloc
// report them. Nothing is tried or measured here. Calls hwloc, available.h and the bench's cores.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/text.h"

namespace ferry::tools {

// The caches of one kind.
struct Cache {
  int level = 0;
  std::uint64_t bytes = 0;  // size of each cache
  int count = 0;
  int shared_by = 0;  // number of hardware threads that share a cache
};

struct MachineFacts {
  std::string processor, kernel;  // a name and a release; empty if unknown
  std::vector<int> cpus;          // hardware threads that this process may use
  int num_sockets = 0, num_numa = 0, num_cores = 0, num_threads = 0;
  std::vector<Cache> caches;  // data caches, those next to the processor first
  // The number of processors whose time the control group grants. 0 means no limit.
  double cpu_limit = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_available = 0;  // available to this process within its control groups
  std::uint64_t limit_address_space = 0, limit_file_size = 0, limit_locked = 0,
                limit_open_files = 0;  // the other limits are in bytes, this one is a number
  std::string thp, shmem_thp;  // the chosen word of transparent_hugepage/{enabled,shmem_enabled}
};

MachineFacts this_machine();

}  // namespace ferry::tools
