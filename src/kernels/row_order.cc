// The order in which cached copies and sums go through a row.
#include <atomic>

#include "kernels/kernels.h"

namespace ferry::internal {
namespace {

// docs/decisions/rows_from_both_ends.md has the measurements.
RowOrder faster_here() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel") != 0) return RowOrder::kUpwards;
#endif
  return RowOrder::kInwards;
}

std::atomic<RowOrder>& chosen() noexcept {
  static std::atomic<RowOrder> order = faster_here();
  return order;
}

}  // namespace

// Relaxed: the value publishes no other memory.
RowOrder row_order() noexcept { return chosen().load(std::memory_order_relaxed); }
void force_row_order(RowOrder order) noexcept { chosen().store(order, std::memory_order_relaxed); }

}  // namespace ferry::internal
