#include "tools/text.h"

#include <fmt/format.h>

namespace ferry::tools {

std::string bytes_text(std::uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024; ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < numbers.size(); first = last + 1) {
    for (last = first; last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1;) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[first]);
    if (last > first) text += fmt::format("-{}", numbers[last]);
  }
  return text;
}

std::string count_text(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string seconds_text(std::chrono::nanoseconds span) {
  return fmt::format("{:g} s", static_cast<double>(span.count()) / 1e9);
}

std::vector<std::string> wrapped(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (text.size() - begin > columns) {
    const std::size_t blank = text.rfind(' ', begin + columns);
    if (blank == std::string::npos || blank <= begin) break;
    lines.push_back(text.substr(begin, blank - begin));
    begin = blank + 1;
  }
  lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace ferry::tools
