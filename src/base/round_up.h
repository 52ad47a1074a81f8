// round_up: sizes and offsets in whole units.
#pragma once

#include <type_traits>

namespace ferry::internal {

// The smallest multiple of `unit` that is at least `value`; both are not negative. The common unit
// of 1 needs no division.
template <typename Value, typename Unit>
constexpr std::common_type_t<Value, Unit> round_up(Value value, Unit unit) noexcept {
  return unit == 1 ? value : (value + unit - 1) / unit * unit;
}

}  // namespace ferry::internal
