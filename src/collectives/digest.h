// Digests of counts, by which ranks see that their counts differ (CallTerms::counts).
#pragma once

#include <cstdint>
#include <span>

namespace ferry::internal {

inline std::uint64_t mixed(std::uint64_t x) noexcept {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The digest of the count of one pair of ranks. The products of an odd number with different counts
// differ.
inline std::uint64_t digest_of_pair(int source, int destination, std::int64_t count) noexcept {
  const std::uint64_t pair = static_cast<std::uint64_t>(source) << 32 | std::uint32_t(destination);
  return (mixed(pair) | 1) * static_cast<std::uint64_t>(count);
}

inline std::uint64_t digest_of(std::span<const std::int64_t> counts) noexcept {
  std::uint64_t digest = 0;
  for (int i = 0; i < std::ssize(counts); ++i) digest += digest_of_pair(0, i, counts[i]);
  return digest;
}

}  // namespace ferry::internal
