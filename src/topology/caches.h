// Sizes of this host's caches, read from /sys once in a process.
#pragma once

#include <cstdint>

namespace ferry::internal {

// Bytes of all last-level caches of the host together; 32 MiB when the kernel does not state them.
std::uint64_t last_level_cache_bytes();

// Bytes of the cache of the last but one level, which other processors usually do not share; 1 MiB
// when the kernel does not state it.
std::uint64_t private_cache_bytes();

}  // namespace ferry::internal
