// The processors on which a thread may run, and their NUMA nodes, read from /sys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ferry::internal {

using CpuList = std::vector<int>;  // ascending

// Reads a list as the kernel writes it: "0-3,8,10-11". Empty for a text of another form.
CpuList parse_cpu_list(std::string_view text);

// The processors of `allowed`, by NUMA node, in the order of their lowest processors. A node
// without a processor of `allowed` is omitted. Empty where fewer than two nodes remain: there is
// nothing to choose. `folder`: /sys/devices/system/node, or a folder of the same form.
std::vector<CpuList> cpus_by_node(const std::string& folder, const CpuList& allowed);

// The processors on which the calling thread may run. Empty: the kernel does not state them.
CpuList allowed_cpus();

// The processors on which the calling thread may run, by NUMA node, as cpus_by_node() gives them.
std::vector<CpuList> my_cpus_by_node();

// Lets the calling thread run on these processors only. Where the kernel refuses, nothing changes.
void run_on(const CpuList& cpus) noexcept;

}  // namespace ferry::internal
