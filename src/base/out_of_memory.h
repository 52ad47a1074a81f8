// Texts of errors where the system may refuse memory for them.
#pragma once

#include <new>
#include <string>

namespace ferry::internal {

// A std::string holds this text without an allocation, so that it can be returned without memory.
inline constexpr const char* kOutOfMemory = "out of memory";

// The text that `make` returns, or kOutOfMemory where there is no memory for it.
template <typename Make>
std::string text_of(const Make& make) noexcept {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

}  // namespace ferry::internal
