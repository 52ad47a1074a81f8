// FERRY_CHECK checks an invariant of ferry itself, which no argument and no message of another rank
// can break. Every build has the checks. Where one object gives data to another, usually both
// check: the one that writes and the one that reads. Code that runs for each row has no check.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

#include "ferry/status.h"

namespace ferry::internal {

// Thrown if an invariant does not hold. A call of an exchange or of collectives then returns
// kBroken, and breaks the group on all ranks (GroupState::fail). From a call that throws, the
// caller gets this Error. In a noexcept function, and in a thread of ferry, the process ends with
// the same text.
class InvariantError : public Error {
 public:
  explicit InvariantError(const std::string& text) : Error(Code::kBroken, text) {}
};

struct CheckedPlace {
  const char* file;
  int line;
  const char* text;  // the text of the comparison
};

[[noreturn]] inline void throw_invariant_error(const CheckedPlace& place, const std::string& left,
                                               const std::string& right) {
  std::string_view file = place.file;
  if (const std::size_t folder = file.rfind("src/"); folder != std::string_view::npos)
    file.remove_prefix(folder);
  throw InvariantError(
      fmt::format("a fault of ferry, please report it: {}:{}: {} does not hold: {} and {}", file,
                  place.line, place.text, left, right));
}

// Formats numbers, enumerators and pointers.
template <typename Value>
std::string checked_value(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return fmt::format("{}", static_cast<std::underlying_type_t<Value>>(value));
  } else if constexpr (std::is_pointer_v<Value>) {
    return fmt::format("{}", static_cast<const void*>(value));
  } else {
    return fmt::format("{}", value);
  }
}

}  // namespace ferry::internal

// Used as FERRY_CHECK(count, <=, limit). The error shows both values, for which the operands are
// evaluated a second time.
#define FERRY_CHECK(left, comparison, right)                         \
  ((left)comparison(right)                                           \
       ? static_cast<void>(0)                                        \
       : ::ferry::internal::throw_invariant_error(                   \
             {__FILE__, __LINE__, #left " " #comparison " " #right}, \
             ::ferry::internal::checked_value(left), ::ferry::internal::checked_value(right)))
