// FERRY_CHECK: invariants of ferry itself, on in every build. A caller's mistake is a Status or an
// Error, never this.
#pragma once

#include <fmt/format.h>

#include "ferry/status.h"

namespace ferry::internal {

template <typename A, typename B>
[[noreturn]] void check_failed(const char* file, int line, const char* text, const A& a,
                               const B& b) {
  throw Error(Code::kSystem, fmt::format("ferry: internal check failed at {}:{}: {} ({} and {})",
                                         file, line, text, a, b));
}

}  // namespace ferry::internal

#define FERRY_CHECK(a, op, b) \
  ((a)op(b) ? void()          \
            : ::ferry::internal::check_failed(__FILE__, __LINE__, #a " " #op " " #b, (a), (b)))
