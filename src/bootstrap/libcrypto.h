// Owns objects of libcrypto, checks its results, and converts texts to its type.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ferry/status.h"

namespace ferry::internal {

template <typename Object, void (*kFree)(Object*)>
struct Free {
  void operator()(Object* object) const noexcept { kFree(object); }
};
template <typename Object, void (*kFree)(Object*)>
using Owned = std::unique_ptr<Object, Free<Object, kFree>>;

// Throws for the result of a failed call. libcrypto fails only if it has no memory or no random
// bytes.
template <typename Result>
Result checked(Result result) {
  if (!result) throw Error(Code::kSystem, "libcrypto cannot compute");
  return result;
}

inline const unsigned char* octets(std::string_view text) noexcept {
  return reinterpret_cast<const unsigned char*>(text.data());
}
inline unsigned char* octets(std::string& text) noexcept {
  return reinterpret_cast<unsigned char*>(text.data());
}

}  // namespace ferry::internal
