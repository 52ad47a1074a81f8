#include "exchange/setup/differences.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace ferry::internal {

namespace {

using Field = std::pair<std::string_view, std::string_view>;

std::vector<Field> fields_of(std::string_view text) {
  std::vector<Field> fields;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const std::size_t is = std::min(line.find(" is "), line.size());
    fields.emplace_back(line.substr(0, is), line.substr(std::min(is + 4, line.size())));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return fields;
}

std::optional<std::string_view> value_of(const std::vector<Field>& fields, std::string_view name) {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [name](const Field& field) { return field.first == name; });
  if (found == fields.end()) return {};
  return found->second;
}

}  // namespace

std::string differences(std::string_view first, std::string_view other) {
  const std::vector<Field> mine = fields_of(first), theirs = fields_of(other);
  std::vector<std::string> found;
  for (const auto& [name, value] : mine) {
    const auto its = value_of(theirs, name);
    if (its != value)
      found.push_back(fmt::format("{} is {} and {}", name, value, its.value_or("none")));
  }
  for (const auto& [name, value] : theirs) {
    if (!value_of(mine, name)) found.push_back(fmt::format("{} is none and {}", name, value));
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace ferry::internal
