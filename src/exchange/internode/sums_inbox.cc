#include "exchange/internode/sums_inbox.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "group/wait.h"

namespace ferry::internal {

// Memory is reused, since page faults of new memory cost more than the sums.
const IncomingSums& SumsInbox::expect(std::uint64_t number, int source, int mate,
                                      std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const IncomingSums& other : expected_) {
    const bool same = other.number == number && other.source == source && other.mate == mate;
    FERRY_CHECK(same, ==, false);
  }
  IncomingSums& incoming = expected_.emplace_back();
  incoming.number = number;
  incoming.source = source;
  incoming.mate = mate;
  incoming.size = bytes;
  incoming.capacity = std::max<std::size_t>(bytes, 1);
  const auto fits = std::find_if(spare_.begin(), spare_.end(),
                                 [&](const auto& spare) { return spare.first >= bytes; });
  if (fits != spare_.end()) {
    incoming.capacity = fits->first;
    incoming.memory = std::move(fits->second);
    spare_.erase(fits);
  } else {
    if (!spare_.empty()) spare_.pop_back();  // too small
    incoming.memory = std::make_unique_for_overwrite<std::byte[]>(incoming.capacity);
  }
  FERRY_CHECK(incoming.capacity, >=, bytes);
  return incoming;
}

void SumsInbox::forget(std::uint64_t number, int source) {
  const std::lock_guard lock(mutex_);
  expected_.remove_if([&](IncomingSums& incoming) {
    if (incoming.number != number || incoming.source != source) return false;
    spare_.emplace_back(incoming.capacity, std::move(incoming.memory));
    return true;
  });
}

void SumsInbox::begin_view(std::uint64_t last) {
  const std::lock_guard lock(mutex_);
  expected_.clear();
  for (auto& summed : summed_) summed.store(last, std::memory_order_relaxed);
}

bool SumsInbox::take(std::uint64_t number, int source, int mate, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  for (IncomingSums& incoming : expected_) {
    if (incoming.number != number || incoming.source != source || incoming.mate != mate) continue;
    const std::size_t at = incoming.filled.load(std::memory_order_relaxed);  // written here only
    FERRY_CHECK(at, <=, incoming.size);
    if (bytes.size() > incoming.size - at) return false;
    std::memcpy(incoming.memory.get() + at, bytes.data(), bytes.size());
    incoming.filled.store(at + bytes.size(), std::memory_order_release);  // partner: come()
    return incoming.whole();
  }
  return false;
}

bool SumsInbox::whole(std::uint64_t number, int source, int mate) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(expected_.begin(), expected_.end(), [&](const IncomingSums& incoming) {
    return incoming.number == number && incoming.source == source && incoming.mate == mate &&
           incoming.whole();
  });
}

// Raises only: an earlier combine may become complete after kDeparted.
void SumsInbox::raise_summed(int mate, std::uint64_t number) noexcept {
  raise_to(summed_[mate], number);
}

}  // namespace ferry::internal
