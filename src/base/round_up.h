// round_up: rounds a size or an offset up to whole units.
#pragma once

#include <type_traits>

namespace ferry::internal {

// The smallest multiple of `unit` that is at least `value`. Both must not be negative. The common
// unit 1 needs no division.
template <typename Value, typename Unit>
constexpr std::common_type_t<Value, Unit> round_up(Value value, Unit unit) noexcept {
  return unit == 1 ? value : (value + unit - 1) / unit * unit;
}

}  // namespace ferry::internal
