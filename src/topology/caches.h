// Sizes of this host's caches, read from /sys once in a process.
#pragma once

#include <cstdint>

namespace ferry::internal {

// Bytes of all last-level caches of the host together; 32 MiB when the kernel does not say.
std::uint64_t last_level_cache_bytes();

// Bytes of the cache before the last one of a processor, by convention its own; 1 MiB when the
// kernel does not say.
std::uint64_t private_cache_bytes();

}  // namespace ferry::internal
