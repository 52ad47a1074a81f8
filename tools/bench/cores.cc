// Owns the affinity calls of the bench; see cores.h.
#include "tools/bench/cores.h"

#include <algorithm>
#include <fstream>

#include "topology/numa.h"

namespace ferry::bench {

std::vector<int> allowed_cores() {
  std::vector<int> cores = internal::allowed_cpus();
  return cores.empty() ? std::vector<int>{0} : cores;
}

void pin_to(const std::vector<int>& cores, int first, int count) {
  std::vector<int> chosen;
  const std::size_t wanted = std::min(static_cast<std::size_t>(count), cores.size());
  for (std::size_t i = 0; i < wanted; ++i)
    chosen.push_back(cores[(static_cast<std::size_t>(first) + i) % cores.size()]);
  // If this process may no longer use the core, the thread stays unpinned. It is then slower, and
  // its results are the same.
  internal::run_on(chosen);
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
