// Reads /proc/meminfo and the control groups of this process.
#include "memory/available.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/check.h"

namespace ferry::internal {
namespace {

constexpr std::uint64_t kUnlimited = UINT64_MAX;

// The number after `key` in a file of "key value" lines.
std::optional<std::uint64_t> field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  std::uint64_t value = 0;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // no such file, or "max"
}

// The files of one version of control groups.
struct Version {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* cache_prefix;  // prefix of the fields of memory.stat that include the groups below
};
constexpr Version kVersions[] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"},
    {"/sys/fs/cgroup", "memory.max", "memory.current", ""},
    {"/sys/fs/cgroup/unified", "memory.max", "memory.current", ""},
};

std::uint64_t remaining_in_group(const std::string& folder, const Version& version) {
  const auto limit = number(folder + "/" + version.limit);
  const auto usage = number(folder + "/" + version.usage);
  if (!limit || !usage) return kUnlimited;
  // Shared memory is not in these two counts, so the kernel can drop all of them.
  const std::string stat = folder + "/memory.stat", prefix = version.cache_prefix;
  const std::uint64_t cache = field(stat, prefix + "inactive_file").value_or(0) +
                              field(stat, prefix + "active_file").value_or(0);
  const std::uint64_t held = *usage > cache ? *usage - cache : 0;
  return *limit > held ? *limit - held : 0;
}

// The limit of every ancestor counts. Inside a container, the path named in /proc may not exist
// below the mount, and the container's limit is at the top of the mount. So every folder from the
// path up to the mount is read.
std::uint64_t remaining_on_path(const std::string& root, std::string path, const Version& version) {
  std::uint64_t remaining = kUnlimited;
  while (true) {
    std::string folder = root;
    folder.append(version.mount).append(path);
    remaining = std::min(remaining, remaining_in_group(folder, version));
    if (path.empty()) return remaining;
    path.erase(path.find_last_of('/'));
  }
}

std::uint64_t remaining_in_groups(const std::string& root) {
  std::uint64_t remaining = kUnlimited;
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {  // "4:memory:/path" or "0::/path"
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version_2 = controllers.empty();
    if (!version_2 && controllers.find("memory") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    if (path.empty() || path.front() != '/') continue;
    if (path == "/") path.clear();
    for (const Version& version : kVersions)
      remaining = std::min(remaining, remaining_on_path(root, path, version));
  }
  return remaining;
}

}  // namespace

std::uint64_t available_memory(const std::string& root) {
  const auto machine_kib = field(root + "/proc/meminfo", "MemAvailable:");
  return std::min(machine_kib ? *machine_kib * 1024 : kUnlimited, remaining_in_groups(root));
}

bool MemoryAllowance::take(std::uint64_t bytes, std::int64_t now_ns,
                           const std::function<std::uint64_t()>& available) {
  if (bytes > remaining_ || now_ns >= until_ns_) {
    const std::uint64_t free = available();
    if (bytes > free) return false;
    remaining_ = bytes + (free - bytes) / kShare;
    until_ns_ = now_ns + kHoldsNs;
  }
  FERRY_CHECK(bytes, <=, remaining_);
  remaining_ -= bytes;
  return true;
}

}  // namespace ferry::internal
