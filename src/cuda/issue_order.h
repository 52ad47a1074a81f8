// IssueOrder: the order in which ranks that are threads of this process and share a device issue
// their kernels. The driver and the device promise progress only in the order of issue: a kernel
// may have to wait for all kernels that any stream got before it (docs/cuda.md). So a kernel that
// waits is issued only after all of these ranks have issued the kernels for which it waits.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/views.h"

namespace ferry::internal {

class IssueOrder {
 public:
  // For each phase the number of kernels that a rank has issued, or the largest number once it has
  // left. The rank is the only writer.
  using Counts = std::array<std::atomic<std::uint64_t>, kNumCudaPhases>;

  const std::shared_ptr<Counts>& counts() const noexcept { return mine_; }
  // Another rank that shares the process and the device.
  void add(int rank, std::shared_ptr<const Counts> counts) {
    others_.push_back({rank, std::move(counts)});
  }
  bool has_others() const noexcept { return !others_.empty(); }

  // This rank has issued the kernel for which the others will wait in this phase.
  void issued(CudaPhase phase) noexcept;
  // Waits until each other rank has issued as many kernels of this phase as this rank. Returns a
  // rank that has not when the limit passes, or -1.
  int await(CudaPhase phase, std::chrono::nanoseconds limit) const noexcept;
  // This rank issues no more kernels, and no rank waits for it.
  void leave() noexcept;

 private:
  struct Other {
    int rank;
    std::shared_ptr<const Counts> counts;
  };

  std::shared_ptr<Counts> mine_ = std::make_shared<Counts>();
  std::vector<Other> others_;
};

}  // namespace ferry::internal
