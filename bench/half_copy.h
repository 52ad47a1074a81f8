// What a kernel that halves a row can at best be: the row is read once, half as many bytes are
// written, nothing is computed. Called by wire_bench.cc.
#pragma once

#include <cstddef>

namespace ferry::bench {

// Writes bytes / 2 to dst; bytes is a multiple of 512.
void half_copy(void* dst, const void* src, std::size_t bytes);

}  // namespace ferry::bench
