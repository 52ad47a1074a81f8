// Machines as numbered lines of text; error messages name the line. docs/plan.md has the grammar.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/plan.h"

namespace ferry::internal {

// The names of Machine::Shape, in the order of its values.
inline constexpr std::array kShapeNames = {"mesh", "ring", "pairs", "index", "xor"};

// Some editors begin a file of UTF-8 with it.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct MachineLine {
  int number;  // from 1, in the text of the user; 0: not written by the user
  std::string_view text;
};

// Machine::parse for lines that may come from another format. Presets are not accepted.
Machine parse_lines(std::span<const MachineLine> lines);

}  // namespace ferry::internal
