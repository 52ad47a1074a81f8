#include "exchange/workers/learned_stores.h"

#include <map>
#include <mutex>

namespace ferry::internal {

LearnedStores& LearnedStores::of_groups(int num_ranks) {
  static std::mutex mutex;
  // Never destroyed: exchanges that outlive main() still refer to it.
  static auto& by_ranks = *new std::map<int, LearnedStores>;
  const std::scoped_lock lock(mutex);
  return by_ranks[num_ranks];
}

std::optional<Stores> LearnedStores::find(int bits) const noexcept {
  const Entry entry = entries_[bits].load(std::memory_order_relaxed);
  if (entry == kNothing) return std::nullopt;
  return entry == kStreaming ? Stores::kStreaming : Stores::kCached;
}

void LearnedStores::keep(int bits, Stores stores) noexcept {
  entries_[bits].store(stores == Stores::kStreaming ? kStreaming : kCached,
                       std::memory_order_relaxed);
}

}  // namespace ferry::internal
