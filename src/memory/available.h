// How much memory this process may still take before the kernel kills somebody: the smaller of what
// the machine has free and what its control groups (versions 1 and 2) leave. Called by Segment
// before it commits; reads files only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ferry::internal {

// Bytes. Page cache that can be dropped counts as available. A limit that cannot be read is no
// limit; when nothing can be read the answer is UINT64_MAX. `root` is put before /proc and /sys;
// tests give a folder of their own.
std::uint64_t available_memory(const std::string& root = "");

// What one thread may take without asking again. available_memory() reads some thirty files, which
// takes longer than backing a few pages does. So an answer holds for a second, and only for a
// thousandth of what was available, as other ranks take memory at the same time.
class MemoryAllowance {
 public:
  static constexpr std::uint64_t kShare = 1024;
  static constexpr std::int64_t kHoldsNs = 1'000'000'000;

  // True: these bytes are available, and count as taken. `available` is called where no earlier
  // answer covers them; what it throws is passed on.
  bool take(std::uint64_t bytes, std::int64_t now_ns,
            const std::function<std::uint64_t()>& available);

 private:
  std::uint64_t remaining_ = 0;  // bytes
  std::int64_t until_ns_ = 0;
};

}  // namespace ferry::internal
