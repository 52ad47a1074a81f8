// Formats lists, counts, sizes and times for the messages and reports of the tools.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ferry::tools {

inline constexpr std::uint64_t kUnlimited = UINT64_MAX;

// Formats a size as "1.5 GiB", and kUnlimited as "unlimited".
std::string bytes_text(std::uint64_t bytes);
// Formats ascending numbers as "0-3,8".
std::string ranges_text(const std::vector<int>& numbers);
// Formats a count with its noun, as "1 rank" or "2 ranks".
std::string count_text(std::int64_t count, const char* noun);
// Formats a time as "0.5 s".
std::string seconds_text(std::chrono::nanoseconds span);
// Cuts `text` into lines of at most `columns` at its blanks.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns);

}  // namespace ferry::tools
