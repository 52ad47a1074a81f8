// One bad call between good ones: the errors that its rank and the other ranks must get, and a next
// call that must work.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "seat.h"

namespace ferry::test {

inline constexpr int kRanks = 3;
inline constexpr int kOffender = 1;
inline constexpr std::int64_t kTokens = 8;
inline constexpr int kTopK = 2;

ExchangeConfig small_config();

// Memory that a bad call may point to.
struct Scratch {
  std::vector<std::int64_t> ids;
  std::vector<std::int32_t> narrow_ids;
  std::vector<float> weights;
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 16);
};

// What the offender does to its legal call: statements on its arguments `a` and the memory `s`, for
// `spoil` of BadDispatch and BadCombine.
#define SPOIL(...) []([[maybe_unused]] auto& a, [[maybe_unused]] Scratch& s) { __VA_ARGS__; }

struct BadDispatch {
  const char* name;
  std::function<void(DispatchArgs&, Scratch&)> spoil;
  std::vector<std::string> parts;  // of the message
};
inline void PrintTo(const BadDispatch& bad, std::ostream* stream) { *stream << bad.name; }

struct BadCombine {
  const char* name;
  std::function<void(CombineArgs&, Scratch&)> spoil;
  std::vector<std::string> parts;
};
inline void PrintTo(const BadCombine& bad, std::ostream* stream) { *stream << bad.name; }

// Two rounds of a plain scenario on kRanks ranks.
Scenario two_rounds(const ExchangeConfig& config = small_config());

// Round 0 with the offender's call spoiled, then round 1. try_bad_combine repeats the combine of
// round 0 before round 1.
void try_bad_dispatch(Mode mode, const Scenario& scenario, const BadDispatch& bad);
void try_bad_combine(Mode mode, const Scenario& scenario, const BadCombine& bad);

}  // namespace ferry::test
