// round_up: sizes and offsets in whole units.
#pragma once

#include <type_traits>

namespace ferry::internal {

// The first multiple of `unit` that is not below `value`; neither is negative. Without a division
// for the common unit of 1.
template <typename Value, typename Unit>
constexpr std::common_type_t<Value, Unit> round_up(Value value, Unit unit) noexcept {
  return unit == 1 ? value : (value + unit - 1) / unit * unit;
}

}  // namespace ferry::internal
