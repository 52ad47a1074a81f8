// Limits on JSON that ferry did not write. The JSON library has no limits: each value takes memory,
// and each level of nesting takes stack.
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
