#include "tools/json_limits.h"

#include <algorithm>

#include "tools/refuse.h"

namespace ferry::tools {
namespace {

// The deepest nesting of lists and objects. Brackets inside strings do not count.
int levels_of(std::string_view text) {
  int open = 0, most = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      most = std::max(most, ++open);
    } else if (!in_string && (c == ']' || c == '}')) {
      --open;
    }
  }
  return most;
}

}  // namespace

void check_json(std::string_view what, std::string_view text, std::size_t most_bytes) {
  if (text.size() > most_bytes)
    refuse("{} has {} bytes, at most {}", what, text.size(), most_bytes);
  if (const int levels = levels_of(text); levels > kMostJsonLevels)
    refuse("{} is nested {} levels deep, at most {}", what, levels, kMostJsonLevels);
}

}  // namespace ferry::tools
