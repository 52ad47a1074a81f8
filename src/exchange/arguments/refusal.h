// The Status of an argument rule that refuses: kInvalidArgument, with a formatted text and this
// rank as the culprit.
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
