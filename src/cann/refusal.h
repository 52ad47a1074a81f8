// Refused: a failed check of the arguments of an operator, with the code of the operators and a
// message that states the value and the limit.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "ferry/cann.h"

namespace ferry::cann::internal {

// Only this rank has found the error: the call must be refused on the other ranks too.
struct Refused {
  StatusCode code;
  Status status;
};

// All ranks have found the error, or the rows have moved: the call ends with this result.
struct Failed {
  Result result;
};

template <typename... Values>
void require(bool holds, StatusCode code, fmt::format_string<Values...> text, Values&&... values) {
  if (holds) return;
  throw Refused{code, {Code::kInvalidArgument, fmt::format(text, std::forward<Values>(values)...)}};
}

// A value that is wrong on its own.
template <typename... Values>
void require_value(bool holds, fmt::format_string<Values...> text, Values&&... values) {
  require(holds, StatusCode::kInvalidParameter, text, std::forward<Values>(values)...);
}

// Values that do not fit together, or that ferry does not implement.
template <typename... Values>
void require_fit(bool holds, fmt::format_string<Values...> text, Values&&... values) {
  require(holds, StatusCode::kTilingError, text, std::forward<Values>(values)...);
}

inline void require_in(const char* name, std::int64_t value, std::int64_t least,
                       std::int64_t most) {
  if (least == most)
    require_value(value == least, "{} is {}, need {}", name, value, least);
  else
    require_value(value >= least && value <= most, "{} is {}, need {} to {}", name, value, least,
                  most);
}

// Refuses a null tensor, unless it has no elements.
inline void require_given(const char* name, const void* data, std::int64_t elements) {
  require(data != nullptr || elements == 0, StatusCode::kNullPointer,
          "{} is null, need {} elements", name, elements);
}

}  // namespace ferry::cann::internal
