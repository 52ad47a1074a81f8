// A hash of 64 bits.
#pragma once

#include <cstdint>

namespace ferry::internal {

// The finalizer of splitmix64: different inputs have different results.
inline std::uint64_t mixed(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace ferry::internal
