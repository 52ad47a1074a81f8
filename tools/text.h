// How lists, counts, sizes and times read in the messages and reports of the tools.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ferry::tools {

inline constexpr std::uint64_t kUnlimited = UINT64_MAX;

// "1.5 GiB"; "unlimited" for kUnlimited.
std::string bytes_text(std::uint64_t bytes);
// "0-3,8" of ascending numbers.
std::string ranges_text(const std::vector<int>& numbers);
// "1 rank", "2 ranks".
std::string count_text(std::int64_t count, const char* noun);
// "0.5 s".
std::string seconds_text(std::chrono::nanoseconds span);
// Cuts `text` into lines of at most `columns` at its blanks.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns);

}  // namespace ferry::tools
