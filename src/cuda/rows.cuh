// Rows as vectors, which are as wide as the size and the addresses of the rows allow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/flags.cuh"
#include "ferry/types.h"
#include "kernels/float_formats.h"

namespace ferry::internal {

// An element as a float.
template <DataType type>
__device__ inline float element(const std::byte* row, std::int64_t at) {
  if constexpr (type == DataType::kFp32) {
    return reinterpret_cast<const float*>(row)[at];
  } else {
    const std::uint16_t half = reinterpret_cast<const std::uint16_t*>(row)[at];
    return type == DataType::kBf16 ? bf16_to_float(half) : fp16_to_float(half);
  }
}

// Copies a row to `count` places; all threads of the block.
template <typename Vector>
__device__ inline void spread_row(const std::byte* from, std::int64_t bytes, std::byte* const* to,
                                  int count) {
  constexpr int kTogether = 4;
  const Vector* source = reinterpret_cast<const Vector*>(from);
  const std::int64_t size = bytes / sizeof(Vector);
  for (std::int64_t first = threadIdx.x; first < size; first += kTogether * blockDim.x) {
    Vector part[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::int64_t at = first + i * static_cast<std::int64_t>(blockDim.x);
      if (at < size) part[i] = __ldcs(source + at);
    }
    for (int place = 0; place < count; ++place) {
      Vector* row = reinterpret_cast<Vector*>(to[place]);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const std::int64_t at = first + i * static_cast<std::int64_t>(blockDim.x);
        if (at < size) row[at] = part[i];
      }
    }
  }
}

// Calls with() with a vector of `width` bytes, which divides all sizes and addresses.
template <typename Function>
void with_vector(std::int64_t width, const Function& with) {
  if (width >= 16) return with(uint4{});
  if (width >= 8) return with(uint2{});
  if (width >= 4) return with(unsigned{});
  if (width >= 2) return with(static_cast<unsigned short>(0));
  with(static_cast<unsigned char>(0));
}

// The bytes of the widest vector, at most 16, that divides `sizes`, the bitwise or of all addresses
// and sizes.
inline std::int64_t vector_width(std::uint64_t sizes) {
  const std::uint64_t lowest = sizes & (~sizes + 1);
  return lowest == 0 || lowest > 16 ? 16 : static_cast<std::int64_t>(lowest);
}

// The threads of a block that handles rows of `vectors`: the fewest with which the block needs no
// more rounds than with 256 threads.
inline int threads_for(std::int64_t vectors) {
  const std::int64_t rounds = (vectors + 255) / 256;
  const std::int64_t each = rounds == 0 ? 1 : (vectors + rounds - 1) / rounds;
  return static_cast<int>(round_up(each, kWarp));
}

}  // namespace ferry::internal
