#include "base/check.h"

#include <string_view>

namespace ferry::internal {

void throw_invariant_error(const CheckedPlace& place, const std::string& left,
                           const std::string& right) {
  std::string_view file = place.file;
  if (const std::size_t folder = file.rfind("src/"); folder != std::string_view::npos)
    file.remove_prefix(folder);
  throw InvariantError(
      fmt::format("a fault of ferry, please report it: {}:{}: {} does not hold: {} and {}", file,
                  place.line, place.text, left, right));
}

}  // namespace ferry::internal
