// Upper limits of a configuration.
#pragma once

namespace ferry::internal {

inline constexpr int kMaxTopK = 32;
inline constexpr int kMaxSharedExperts = 4;
inline constexpr int kMaxEntries = kMaxTopK + kMaxSharedExperts;  // the most entries of a token
inline constexpr int kMaxDepth = 16;                              // the most operations in flight
inline constexpr int kMaxTpSize = 8;  // the largest tensor-parallel group

}  // namespace ferry::internal
