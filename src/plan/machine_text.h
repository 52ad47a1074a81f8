// Machines as lines of text whose numbers a complaint names; docs/plan.md has the grammar.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/plan.h"

namespace ferry::internal {

// Names of Machine::Shape, in its order.
inline constexpr std::array kShapeNames = {"mesh", "ring", "pairs", "index", "xor"};

struct MachineLine {
  int number;  // from 1, of the text that the user wrote; 0: the user did not write it
  std::string_view text;
};

// Machine::parse of lines that may come from another form, which has no presets.
Machine parse_lines(std::span<const MachineLine> lines);

}  // namespace ferry::internal
