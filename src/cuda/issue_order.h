// IssueOrder: in which order ranks that are threads of this process and share a device issue their
// kernels. The driver and the device promise progress only in the order of issue: a kernel may have
// to wait for all that any stream was given before it (docs/cuda.md). So a kernel that waits is
// issued when all of these ranks have issued what it waits for. Called by exchange.cc.
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
  // How many kernels of each phase a rank has issued. One writer, the rank.
  using Counts = std::array<std::atomic<std::uint64_t>, kNumCudaPhases>;

  const std::shared_ptr<Counts>& counts() const noexcept { return mine_; }
  // Another rank that shares the process and the device.
  void add(int rank, std::shared_ptr<const Counts> counts) {
    others_.push_back({rank, std::move(counts)});
  }
  bool has_others() const noexcept { return !others_.empty(); }

  // This rank has issued what the others will wait for in this phase.
  void issued(CudaPhase phase) noexcept;
  // Waits until each of the others has issued as many of this phase as this rank. Returns one that
  // has not by then, or -1.
  int await(CudaPhase phase, std::chrono::nanoseconds limit) const noexcept;
  // This rank will issue nothing more, and nobody waits for it.
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
