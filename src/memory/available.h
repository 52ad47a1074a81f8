// The memory that this process can take before the kernel kills a process: the smaller of the
// machine's free memory and the rest of its control groups' limits (versions 1 and 2). Reads files
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ferry::internal {

// Bytes. Page cache that can be dropped counts as available. A limit that cannot be read does not
// count; when nothing can be read, the result is UINT64_MAX. `root` is put before /proc and /sys;
// tests give a folder of their own.
std::uint64_t available_memory(const std::string& root = "");

// The memory that one thread may take without another call of available_memory(), which reads some
// thirty files and takes longer than backing a few pages. A result holds for a second, and for a
// thousandth of the available memory, because other ranks take memory at the same time.
class MemoryAllowance {
 public:
  static constexpr std::uint64_t kShare = 1024;
  static constexpr std::int64_t kHoldsNs = 1'000'000'000;

  // True: these bytes are available, and count as taken. `available` is called where no earlier
  // result covers them; its exceptions pass through.
  bool take(std::uint64_t bytes, std::int64_t now_ns,
            const std::function<std::uint64_t()>& available);

 private:
  std::uint64_t remaining_ = 0;  // bytes
  std::int64_t until_ns_ = 0;
};

}  // namespace ferry::internal
