#include "exchange/internode/sums_inbox.h"

#include <algorithm>
#include <cstring>

namespace ferry::internal {

// Memory is used again: the pages of a first use cost more than the sums.
const IncomingSums& SumsInbox::expect(std::uint64_t number, int origin, int mate,
                                      std::size_t bytes) {
  IncomingSums incoming{.number = number,
                        .origin = origin,
                        .mate = mate,
                        .memory = {},
                        .size = bytes,
                        .filled = 0,
                        .capacity = std::max<std::size_t>(bytes, 1)};
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
  return expected_.emplace_back(std::move(incoming));
}

void SumsInbox::forget(std::uint64_t number, int origin) {
  expected_.remove_if([&](IncomingSums& incoming) {
    if (incoming.number != number || incoming.origin != origin) return false;
    spare_.emplace_back(incoming.capacity, std::move(incoming.memory));
    return true;
  });
}

bool SumsInbox::take(std::uint64_t number, int origin, int mate, std::span<const std::byte> bytes) {
  for (IncomingSums& incoming : expected_) {
    if (incoming.number != number || incoming.origin != origin || incoming.mate != mate) continue;
    if (bytes.size() > incoming.size - incoming.filled) return false;
    std::memcpy(incoming.memory.get() + incoming.filled, bytes.data(), bytes.size());
    incoming.filled += bytes.size();
    return incoming.whole();
  }
  return false;
}

bool SumsInbox::whole(std::uint64_t number, int origin, int mate) const {
  return std::any_of(expected_.begin(), expected_.end(), [&](const IncomingSums& incoming) {
    return incoming.number == number && incoming.origin == origin && incoming.mate == mate &&
           incoming.whole();
  });
}

}  // namespace ferry::internal
