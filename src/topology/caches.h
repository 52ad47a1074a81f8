// The sizes of this host's caches. Each process reads them once from /sys.
#pragma once

#include <cstdint>

namespace ferry::internal {

// The bytes of all last-level caches of the host together. 32 MiB if the kernel does not state
// them.
std::uint64_t last_level_cache_bytes();

// The bytes of the cache one level below the last. Processors usually do not share it. 1 MiB if the
// kernel does not state it.
std::uint64_t private_cache_bytes();

}  // namespace ferry::internal
