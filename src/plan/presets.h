// Presets: machines of the field as texts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ferry::internal {

// "ubbv2:2@port10@ib=15GB/s": name, number of the outermost level, options and rates. Nothing if
// no machine has the name.
std::optional<std::string> preset_text(std::string_view text);

}  // namespace ferry::internal
