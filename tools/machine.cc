// Reads the hardware topology, limits and settings of this machine.
#include "tools/machine.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "memory/available.h"
#include "tools/bench/cores.h"

namespace ferry::tools {
namespace {

using HwlocTopology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

// Loads the topology of the whole host, so that the report can say "2 of 64".
HwlocTopology load_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {nullptr, &hwloc_topology_destroy};
  HwlocTopology owner(topology, &hwloc_topology_destroy);
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc_topology_load(topology) != 0) owner.reset();
  return owner;
}

void add_caches(hwloc_topology_t topology, MachineFacts& machine) {
  for (const hwloc_obj_type_t type :
       {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE}) {
    const hwloc_obj_t first = hwloc_get_obj_by_type(topology, type, 0);
    if (!first) continue;
    machine.caches.push_back({.level = static_cast<int>(first->attr->cache.depth),
                              .bytes = first->attr->cache.size,
                              .count = hwloc_get_nbobjs_by_type(topology, type),
                              .shared_by = hwloc_bitmap_weight(first->cpuset)});
  }
}

void add_topology(MachineFacts& machine) {
  const HwlocTopology topology = load_topology();
  if (!topology) return;
  const auto count = [&](hwloc_obj_type_t type) {
    return std::max(1, hwloc_get_nbobjs_by_type(topology.get(), type));
  };
  machine.num_sockets = count(HWLOC_OBJ_PACKAGE);
  machine.num_numa = count(HWLOC_OBJ_NUMANODE);
  machine.num_cores = count(HWLOC_OBJ_CORE);
  machine.num_threads = count(HWLOC_OBJ_PU);
  add_caches(topology.get(), machine);
}

std::uint64_t limit(decltype(RLIMIT_AS) resource) {
  rlimit value{};
  if (getrlimit(resource, &value) != 0 || value.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return value.rlim_cur;
}

// Returns the word in brackets: "madvise" for "always [madvise] never".
std::string chosen_word(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  const auto open = text.find('['), close = text.find(']');
  return open < close && close != std::string::npos ? text.substr(open + 1, close - open - 1) : "";
}

// The limit of a control group. Version 2 has "quota period" or "max period" in one file. Version 1
// has two files, and -1 for no limit.
double cpu_limit_of(const std::string& group) {
  std::ifstream both("/sys/fs/cgroup" + group + "/cpu.max");
  std::ifstream quota_file("/sys/fs/cgroup/cpu" + group + "/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu" + group + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  const bool found = (both >> quota >> period) || (quota_file >> quota && period_file >> period);
  return found && quota > 0 && period > 0 ? quota / period : 0;
}

// The strictest limit among the control groups of this process and those above them. In a container
// the path may not exist below the mount. The limit of the container is then at the top of the
// mount.
double cpu_limit() {
  double least = 0;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "4:cpu,cpuacct:/path" or "0::/path"
    std::string path = line.substr(line.rfind(':') + 1);
    if (path == "/") path.clear();
    while (true) {
      const double found = cpu_limit_of(path);
      if (found > 0) least = least > 0 ? std::min(least, found) : found;
      if (path.empty()) break;
      path.erase(path.find_last_of('/'));
    }
  }
  return least;
}

}  // namespace

MachineFacts this_machine() {
  MachineFacts machine;
  utsname system{};
  if (uname(&system) == 0) machine.kernel = system.release;
  machine.processor = bench::processor_name();
  machine.cpus = bench::allowed_cores();
  add_topology(machine);
  machine.cpu_limit = cpu_limit();
  machine.memory_bytes = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                         static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  machine.memory_available = std::min(internal::available_memory(), machine.memory_bytes);
  machine.limit_address_space = limit(RLIMIT_AS);
  machine.limit_file_size = limit(RLIMIT_FSIZE);
  machine.limit_locked = limit(RLIMIT_MEMLOCK);
  machine.limit_open_files = limit(RLIMIT_NOFILE);
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  machine.thp = chosen_word(folder + "enabled");
  machine.shmem_thp = chosen_word(folder + "shmem_enabled");
  return machine;
}

}  // namespace ferry::tools
