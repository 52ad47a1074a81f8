// Compares two texts of lines "name is value".
#pragma once

#include <string>
#include <string_view>

namespace ferry::internal {

// Returns a text such as "hidden is 48 and 50, top_k is 2 and 3", in the order of the first text.
// The value of a name that only one text has is "none" in the other. Empty: the texts do not
// differ.
std::string differences(std::string_view first, std::string_view other);

}  // namespace ferry::internal
