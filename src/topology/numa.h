// The processors on which a thread may run, and their NUMA nodes, read from /sys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ferry::internal {

using CpuList = std::vector<int>;  // ascending

// Reads a list in the form of the kernel: "0-3,8,10-11". Returns an empty list for a text of
// another form.
CpuList parse_cpu_list(std::string_view text);

// The processors of `allowed`, by NUMA node, in the order of their lowest processors. A node
// without a processor of `allowed` is omitted. Empty if fewer than two nodes remain, since there is
// then nothing to choose. `folder` is /sys/devices/system/node, or a folder of the same form.
std::vector<CpuList> cpus_by_node(const std::string& folder, const CpuList& allowed);

// The processors on which the calling thread may run. Empty if the kernel does not state them.
CpuList allowed_cpus();

// The processors on which the calling thread may run, by NUMA node, as cpus_by_node() gives them.
std::vector<CpuList> my_cpus_by_node();

// Restricts the calling thread to these processors. If the kernel refuses, nothing changes.
void run_on(const CpuList& cpus) noexcept;

}  // namespace ferry::internal
