// Facts of this machine and of this process's share of it, as the kernel and hwloc report
// them; nothing is tried or measured here. Calls hwloc, available.h and the bench's cores.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/text.h"

namespace ferry::tools {

// All caches of one kind.
struct Cache {
  int level = 0;
  std::uint64_t bytes = 0;  // each
  int count = 0;
  int shared_by = 0;  // hardware threads
};

struct MachineFacts {
  std::string processor, kernel;  // a name and a release, empty where unknown
  std::vector<int> cpus;          // hardware threads that this process may use
  int num_sockets = 0, num_numa = 0, num_cores = 0, num_threads = 0;
  std::vector<Cache> caches;  // data caches, nearest first
  double cpu_limit = 0;  // processors' worth of time that the control group grants; 0: no limit
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_available = 0;  // to this process, control groups considered
  std::uint64_t limit_address_space = 0, limit_file_size = 0, limit_locked = 0,
                limit_open_files = 0;  // bytes, number
  std::string thp, shmem_thp;  // the chosen word of transparent_hugepage/{enabled,shmem_enabled}
};

MachineFacts this_machine();

}  // namespace ferry::tools
