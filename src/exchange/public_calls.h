// Wrappers for public calls, which check that the object has a state. guarded() and
// guarded_together() let no exception through; made() throws Error where there is no state.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <new>

#include "base/check.h"
#include "base/out_of_memory.h"
#include "ferry/status.h"

namespace ferry::internal {

inline constexpr const char* kNoState = "this Exchange was default-made or moved from";

template <typename State>
State& made(const std::shared_ptr<State>& state) {
  if (!state) throw Error(Code::kClosed, kNoState);
  return *state;
}

// Returns the status of `call`. An exception that `call` throws becomes a Status.
template <typename Call>
Status caught(const Call& call) noexcept {
  try {
    return call();
  } catch (const Error& error) {
    return {error.code(), error.what(), error.culprit()};
  } catch (const std::bad_alloc&) {
    return {Code::kCapacity, kOutOfMemory};
  } catch (const std::exception& error) {
    return {Code::kSystem, fmt::format("the call failed inside ferry: {}", error.what())};
  }
}

// A call of this rank alone. Only an InvariantError breaks the group.
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

// A call that other ranks wait for. After any exception the group breaks, so that their waits end.
template <typename State, typename Call>
Status guarded_together(const std::shared_ptr<State>& state, const Call& call) noexcept {
  if (!state) return {Code::kClosed, kNoState};
  return caught([&] {
    try {
      return call(*state);
    } catch (const std::bad_alloc&) {
      return state->group().fail(kOutOfMemory);
    } catch (const std::exception& error) {
      return state->group().fail(error.what());
    }
  });
}

}  // namespace ferry::internal
