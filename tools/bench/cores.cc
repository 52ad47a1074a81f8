// Owns the affinity calls of the bench; see cores.h.
#include "bench/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

namespace ferry::bench {

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  return cores.empty() ? std::vector<int>{0} : cores;
}

void pin_to(const std::vector<int>& cores, int first, int count) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const std::size_t wanted = std::min(static_cast<std::size_t>(count), cores.size());
  for (std::size_t i = 0; i < wanted; ++i)
    CPU_SET(cores[(static_cast<std::size_t>(first) + i) % cores.size()], &set);
  // A core that went away since leaves the thread where it is: slower, not wrong.
  static_cast<void>(sched_setaffinity(0, sizeof set, &set));
}

std::string processor_name() {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace ferry::bench
