// The copy function of all collectives. The size may be 0, and both addresses may be equal.
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/kernels.h"

namespace ferry::internal {

inline constexpr std::size_t kFew = 128;

inline void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores) noexcept {
  if (to == from || bytes == 0) return;
  // The choice of a kernel takes longer than such a copy.
  if (bytes <= kFew) {
    std::memcpy(to, from, bytes);
    return;
  }
  copy_row(to, from, bytes, stores);
  if (stores == Stores::kStreaming) stores_fence();
}

}  // namespace ferry::internal
