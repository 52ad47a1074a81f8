// Measures how long a flag takes from one core to another. The hypervisor of a virtual machine may
// move cores while it runs, and this time shows where they are. If two cores are at one last-level
// cache, a flag is fast, and the cores share the bandwidth of that cache to memory. If they are at
// two caches, a flag is slow, and each core has a bandwidth of its own.
#pragma once

#include <chrono>
#include <span>
#include <vector>

namespace ferry::bench {

// The shortest time, in nanoseconds, that a flag took between the first two cores. Measures for
// `length`. On one core both threads yield to each other.
double flag_ns(std::span<const int> cores, std::chrono::milliseconds length);

// The mean time between neighbouring cores among the first `count`. Takes some milliseconds.
// Returns 0 for one core.
double mean_flag_ns(const std::vector<int>& cores, std::size_t count);

// Whether cores were moved during the measurement that gave these times.
bool cores_moved(std::span<const double> flags_ns) noexcept;

}  // namespace ferry::bench
