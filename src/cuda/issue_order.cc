#include "cuda/issue_order.h"

#include <limits>
#include <thread>

#include "base/clock.h"

namespace ferry::internal {

// Release: the kernels that were issued before. Partner: await.
void IssueOrder::issued(CudaPhase phase) noexcept {
  (*mine_)[static_cast<std::size_t>(phase)].fetch_add(1, std::memory_order_release);
}

int IssueOrder::await(CudaPhase phase, std::chrono::nanoseconds limit) const noexcept {
  const auto of_phase = static_cast<std::size_t>(phase);
  // Relaxed: its only writer is this rank.
  const std::uint64_t mine = (*mine_)[of_phase].load(std::memory_order_relaxed);
  const std::int64_t end = now_ns() + limit.count();
  for (const Other& other : others_) {
    while ((*other.counts)[of_phase].load(std::memory_order_acquire) < mine) {  // partner: issued
      if (now_ns() > end) return other.rank;
      std::this_thread::yield();
    }
  }
  return -1;
}

void IssueOrder::leave() noexcept {
  for (std::atomic<std::uint64_t>& count : *mine_)
    count.store(std::numeric_limits<std::uint64_t>::max(),
                std::memory_order_release);  // partner: await
}

}  // namespace ferry::internal
