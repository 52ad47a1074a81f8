#include "topology/caches.h"

#include <fmt/format.h>

#include <fstream>
#include <set>
#include <string>

namespace ferry::internal {

namespace {

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "49152K" -> bytes; 0 when there is none.
std::uint64_t parse_size(const std::string& text) {
  if (text.empty()) return 0;
  const std::uint64_t value = std::stoull(text);
  return text.back() == 'K' ? value << 10 : text.back() == 'M' ? value << 20 : value;
}

}  // namespace

std::uint64_t last_level_cache_bytes() {
  constexpr std::uint64_t kUnknown = std::uint64_t{32} << 20;
  std::uint64_t total = 0;
  std::set<std::string> seen;  // a cache is named by the processors that share it
  for (int cpu = 0;; ++cpu) {
    const std::string directory = fmt::format("/sys/devices/system/cpu/cpu{}/cache/", cpu);
    std::string last;
    for (int index = 0; !read_line(fmt::format("{}index{}/size", directory, index)).empty();
         ++index) {
      last = fmt::format("{}index{}/", directory, index);
    }
    if (last.empty()) break;
    if (seen.insert(read_line(last + "shared_cpu_list")).second)
      total += parse_size(read_line(last + "size"));
  }
  return total == 0 ? kUnknown : total;
}

}  // namespace ferry::internal
