// Limits on JSON from outside. The JSON library has none, and each level and each value of a text
// takes memory and stack.
#pragma once

#include <cstddef>
#include <string_view>

namespace ferry::tools {

inline constexpr std::size_t kMostJsonBytes = std::size_t{16} << 20;
inline constexpr int kMostJsonLevels = 64;

// Throws std::invalid_argument if the text exceeds a limit. The error has `what`, the value and the
// limit.
void check_json(std::string_view what, std::string_view text,
                std::size_t most_bytes = kMostJsonBytes);

}  // namespace ferry::tools
