// The refusal of an argument rule: kInvalidArgument by one rank, with a formatted text.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "ferry/status.h"

namespace ferry::internal {

template <typename... Values>
Status refuse_with(int rank, fmt::format_string<Values...> text, Values&&... values) {
  return {Code::kInvalidArgument, fmt::format(text, std::forward<Values>(values)...), rank};
}

}  // namespace ferry::internal
