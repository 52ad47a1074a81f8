#include "base/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ferry/status.h"

namespace ferry::internal {

namespace {

// The edit distance: the number of letters to insert, delete or replace.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& names) {
  if (names.empty()) return "; there are none";
  const auto nearest = std::ranges::min_element(
      names, {}, [&](const std::string& other) { return distance(name, other); });
  if (distance(name, *nearest) * 2 <= std::max(name.size(), nearest->size()))
    return fmt::format("; did you mean '{}'?", *nearest);
  return fmt::format("; there are {}", fmt::join(names, ", "));
}

void refuse_line(int line, const std::string& what) {
  throw Error(Code::kInvalidArgument,
              line > 0 ? fmt::format("machine, line {}: {}", line, what) : what);
}

}  // namespace ferry::internal
