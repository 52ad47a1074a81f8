// How every public call of an exchange reaches its state, on processors and on CUDA devices. Called
// by exchange.cc and cuda/calls.cc.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <memory>

#include "ferry/status.h"

namespace ferry::internal {

inline constexpr const char* kNoState = "this Exchange was default-made or moved from";

template <typename State>
State& made(const std::shared_ptr<State>& state) {
  if (!state) throw Error(Code::kClosed, kNoState);
  return *state;
}

// A call of the data plane: what it throws, such as memory refused inside it, is an error of this
// rank like any other.
template <typename State, typename Call>
Status guarded(const std::shared_ptr<State>& state, const Call& call) noexcept {
  if (!state) return {Code::kClosed, kNoState};
  try {
    return call(*state);
  } catch (const Error& error) {
    return {error.code(), error.what(), error.culprit()};
  } catch (const std::exception& error) {
    return {Code::kSystem, fmt::format("the call failed inside ferry: {}", error.what())};
  }
}

}  // namespace ferry::internal
