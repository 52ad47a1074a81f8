// Reads machines from numbered lines of text. Error messages name the line. docs/plan.md has the
// grammar.
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

// Some editors write this mark at the begin of a file in UTF-8.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct MachineLine {
  int number;  // the line in the text of the user, from 1; 0: the user did not write it
  std::string_view text;
};

// Reads the lines of a machine, which may have been converted from another format. Refuses the
// presets of presets.h; the tree may be a preset of Topology::parse.
Machine parse_lines(std::span<const MachineLine> lines);

}  // namespace ferry::internal
