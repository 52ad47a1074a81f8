// Errors about names that users mistype, and about lines that they wrote.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ferry::internal {

// Returns "; did you mean 'x'?" for the nearest of these names, or "; there are a, b" if none is
// near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

// Throws Error(kInvalidArgument) about a line of a machine description, with the number of the
// line. With number 0 it names no line.
[[noreturn]] void refuse_line(int line, const std::string& what);

}  // namespace ferry::internal
