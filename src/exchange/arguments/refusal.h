// How the argument rules refuse. Used by dispatch_rules.cc, combine_rules.cc, top_k_ids.cc,
// window_rules.cc and state.cc.
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
