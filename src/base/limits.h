// Upper limits of a configuration.
#pragma once

namespace ferry::internal {

inline constexpr int kMaxTopK = 32;
inline constexpr int kMaxSharedExperts = 4;
inline constexpr int kMaxEntries = kMaxTopK + kMaxSharedExperts;  // of a token
inline constexpr int kMaxDepth = 16;                              // operations in flight
inline constexpr int kMaxTpSize = 8;                              // tensor-parallel

}  // namespace ferry::internal
