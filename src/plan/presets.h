// Presets: the texts of machines that are published or sold.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ferry::internal {

// Returns the text of a preset such as "ubbv2:2@port10@ib=15GB/s": a name, the number of groups of
// the outermost level, options and rates. nullopt if no preset has the name.
std::optional<std::string> preset_text(std::string_view text);

}  // namespace ferry::internal
