// How long a flag takes from one core to another. On a virtual machine this time shows where the
// cores are, because the hypervisor may move them while it runs: to one last-level cache (a flag is
// fast, and the cores share the bandwidth of that cache to memory) or to two (a flag is slow, and
// each core has a bandwidth of its own).
#pragma once

#include <chrono>
#include <span>
#include <vector>

namespace ferry::bench {

// Nanoseconds, the best of many, between the first two cores, in a time of this length. On one core
// both threads yield to each other.
double flag_ns(std::span<const int> cores, std::chrono::milliseconds length);

// The mean between neighbours among the first `count` cores, in some milliseconds; 0 on one core.
double mean_flag_ns(const std::vector<int>& cores, std::size_t count);

// Whether cores were moved between the moments of these times.
bool cores_moved(std::span<const double> flags_ns) noexcept;

}  // namespace ferry::bench
