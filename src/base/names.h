// Names that users mistype. Called wherever one is refused: settings, presets, words of a machine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ferry::internal {

// "; did you mean 'x'?" for the nearest of these names, or "; there are a, b" if none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

}  // namespace ferry::internal
