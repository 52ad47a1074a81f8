// The refusal of a value that a user gave.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace ferry::tools {

// Throws std::invalid_argument with this text.
template <typename... Values>
[[noreturn]] void refuse(fmt::format_string<Values...> text, Values&&... values) {
  throw std::invalid_argument(fmt::format(text, std::forward<Values>(values)...));
}

}  // namespace ferry::tools
