#include "topology/numa.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace ferry::internal {

namespace {

constexpr int kMostCpus = CPU_SETSIZE;

// Reads and removes the number with which `text` begins. Returns -1 if there is none, or if it is
// too large for a processor.
int take_cpu(std::string_view& text) {
  int cpu = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), cpu);
  if (error != std::errc() || cpu < 0 || cpu >= kMostCpus) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return cpu;
}

bool take(std::string_view& text, char sign) {
  if (!text.starts_with(sign)) return false;
  text.remove_prefix(1);
  return true;
}

// Whether a folder is that of a node: "node0", but not "node" or "online".
bool is_node(const std::string& name) {
  constexpr std::string_view kNode = "node";
  return name.starts_with(kNode) && name.size() > kNode.size() &&
         name.find_first_not_of("0123456789", kNode.size()) == std::string::npos;
}

}  // namespace

CpuList parse_cpu_list(std::string_view text) {
  CpuList cpus;
  while (!text.empty()) {
    const int first = take_cpu(text);
    const int last = take(text, '-') ? take_cpu(text) : first;
    const bool fits = first >= 0 && last >= first && (cpus.empty() || cpus.back() < first);
    if (!fits || !(text.empty() || (take(text, ',') && !text.empty()))) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<CpuList> cpus_by_node(const std::string& folder, const CpuList& allowed) {
  std::vector<CpuList> nodes;
  std::error_code error;  // if the folder is missing, the result is empty
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_node(entry->path().filename())) continue;
    std::ifstream file(entry->path() / "cpulist");
    std::string line;
    std::getline(file, line);
    const CpuList cpus = parse_cpu_list(line);
    CpuList mine;
    std::ranges::set_intersection(cpus, allowed, std::back_inserter(mine));
    if (!mine.empty()) nodes.push_back(std::move(mine));
  }
  std::ranges::sort(nodes);
  if (nodes.size() < 2) nodes.clear();
  return nodes;
}

CpuList allowed_cpus() {
  CpuList cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<CpuList> my_cpus_by_node() {
  return cpus_by_node("/sys/devices/system/node", allowed_cpus());
}

void run_on(const CpuList& cpus) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  static_cast<void>(sched_setaffinity(0, sizeof set, &set));
}

}  // namespace ferry::internal
