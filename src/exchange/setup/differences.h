// How two texts of lines "name is value" differ.
#pragma once

#include <string>
#include <string_view>

namespace ferry::internal {

// "hidden is 48 and 50, top_k is 2 and 3", in the order of the first text; a value that only one
// has is "none" in the other. Empty: they do not differ.
std::string differences(std::string_view first, std::string_view other);

}  // namespace ferry::internal
