// Which processors a thread may run on, and at which NUMA node they lie, read from /sys. Called by
// src/exchange, whose workers run near the memory of their rank, and by ferry bench, which pins.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ferry::internal {

using CpuList = std::vector<int>;  // ascending

// "0-3,8,10-11", as the kernel writes it. Empty: there are none, or it is no such list.
CpuList parse_cpu_list(std::string_view text);

// By node, in the order of their processors, those of `allowed` that it has; nodes that have none
// of them are left out. Empty where fewer than two nodes are left: there is nothing to choose.
// `folder`: /sys/devices/system/node, or one like it.
std::vector<CpuList> cpus_by_node(const std::string& folder, const CpuList& allowed);

// The processors that the calling thread may run on. Empty: the kernel does not say.
CpuList allowed_cpus();

// Those by node.
std::vector<CpuList> my_cpus_by_node();

// The calling thread runs on these processors from now on. What the kernel refuses changes nothing.
void run_on(const CpuList& cpus) noexcept;

}  // namespace ferry::internal
