#include "topology/caches.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <vector>

namespace ferry::internal {

namespace {

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Parses a size: "49152K" becomes bytes. Returns 0 for a text that does not begin with a number.
std::uint64_t parse_size(const std::string& text) {
  std::uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return 0;
  return text.back() == 'K' ? value << 10 : text.back() == 'M' ? value << 20 : value;
}

std::string cpu_folder(int cpu) { return fmt::format("/sys/devices/system/cpu/cpu{}/", cpu); }

std::string cache_folder(int cpu, int index) {
  return fmt::format("{}cache/index{}/", cpu_folder(cpu), index);
}

// The folders of a processor's caches, in the order of their levels. One that is offline has none.
std::vector<std::string> cache_folders(int cpu) {
  std::vector<std::string> folders;
  for (int index = 0; !read_line(cache_folder(cpu, index) + "size").empty(); ++index)
    folders.push_back(cache_folder(cpu, index));
  return folders;
}

std::uint64_t find_last_level_cache_bytes() {
  constexpr std::uint64_t kUnknown = std::uint64_t{32} << 20;
  std::uint64_t total = 0;
  std::set<std::string> seen;  // the list of processors that share a cache identifies the cache
  std::error_code none;
  for (int cpu = 0; std::filesystem::exists(cpu_folder(cpu), none); ++cpu) {
    const std::vector<std::string> folders = cache_folders(cpu);
    if (folders.empty()) continue;
    if (seen.insert(read_line(folders.back() + "shared_cpu_list")).second)
      total += parse_size(read_line(folders.back() + "size"));
  }
  return total == 0 ? kUnknown : total;
}

std::uint64_t find_private_cache_bytes() {
  constexpr std::uint64_t kUnknown = std::uint64_t{1} << 20;
  const std::vector<std::string> folders = cache_folders(0);
  return folders.size() < 2 ? kUnknown
                            : parse_size(read_line(folders[folders.size() - 2] + "size"));
}

}  // namespace

std::uint64_t last_level_cache_bytes() {
  static const std::uint64_t bytes = find_last_level_cache_bytes();
  return bytes;
}

std::uint64_t private_cache_bytes() {
  static const std::uint64_t bytes = find_private_cache_bytes();
  return bytes;
}

}  // namespace ferry::internal
