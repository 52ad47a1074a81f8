// How much memory this process may still take before the kernel kills somebody: the smaller of what
// the machine has free and what its control groups (versions 1 and 2) leave. Called by Segment
// before it commits; reads files only.
#pragma once

#include <cstdint>
#include <string>

namespace ferry::internal {

// Bytes. Page cache that can be dropped counts as available. A limit that cannot be read is no
// limit; when nothing can be read the answer is UINT64_MAX. `root` is put before /proc and /sys;
// tests give a folder of their own.
std::uint64_t available_memory(const std::string& root = "");

}  // namespace ferry::internal
