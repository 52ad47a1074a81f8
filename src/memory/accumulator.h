// Accumulator: offsets of a layout, one after the other, checked for overflow.
#pragma once

#include <fmt/format.h>

#include <cstddef>

#include "base/check.h"
#include "ferry/status.h"

namespace ferry::internal {

inline std::size_t checked_mul(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("the window would need {} * {} bytes, more than can be addressed", a, b));
  }
  return product;
}

// Hands out offsets one after the other, so that sizes and offsets cannot disagree.
class Accumulator {
 public:
  std::size_t take(std::size_t bytes, std::size_t alignment) {
    const std::size_t offset = align(alignment);
    if (__builtin_add_overflow(offset, bytes, &end_)) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("the window would end {} bytes past {}, more than can be addressed",
                              bytes, offset));
    }
    return offset;
  }
  std::size_t align(std::size_t alignment) {
    FERRY_CHECK(alignment, >, 0U);
    return end_ = (end_ + alignment - 1) / alignment * alignment;
  }

 private:
  std::size_t end_ = 0;
};

}  // namespace ferry::internal
