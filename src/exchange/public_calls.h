// How public calls of the data plane begin and end: the state is there, and no exception leaves
// them.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <memory>

#include "base/check.h"
#include "ferry/status.h"

namespace ferry::internal {

inline constexpr const char* kNoState = "this Exchange was default-made or moved from";

template <typename State>
State& made(const std::shared_ptr<State>& state) {
  if (!state) throw Error(Code::kClosed, kNoState);
  return *state;
}

// What `call` returns. What it throws, such as memory refused inside it, is an error of this rank
// like any other.
template <typename Call>
Status caught(const Call& call) noexcept {
  try {
    return call();
  } catch (const Error& error) {
    return {error.code(), error.what(), error.culprit()};
  } catch (const std::exception& error) {
    return {Code::kSystem, fmt::format("the call failed inside ferry: {}", error.what())};
  }
}

template <typename State, typename Call>
Status guarded(const std::shared_ptr<State>& state, const Call& call) noexcept {
  if (!state) return {Code::kClosed, kNoState};
  return caught([&] {
    try {
      return call(*state);
    } catch (const InvariantError& error) {
      return state->group().fail(error.what());
    }
  });
}

}  // namespace ferry::internal
