// The channels by which objects of a group, such as exchanges, get their messages of other nodes.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "group/state.h"

namespace ferry::internal {

// A rank that failed may have opened fewer channels of the last object than the others.
void GroupState::begin_channels() noexcept {
  const auto held = lock();
  nodes_.last_channel = BetweenNodes::kChannelsOfObject * nodes_.num_objects++;
}

std::uint32_t GroupState::open_channel(Channel* channel) {
  const auto held = lock();
  FERRY_CHECK(channel, !=, nullptr);
  FERRY_CHECK(nodes_.last_channel, <, BetweenNodes::kChannelsOfObject * nodes_.num_objects);
  FERRY_CHECK(nodes_.channels.contains(nodes_.last_channel + 1), ==, false);
  nodes_.channels[++nodes_.last_channel] = channel;
  return nodes_.last_channel;
}

void GroupState::close_channel(std::uint32_t number) noexcept {
  const auto held = lock();
  nodes_.channels.erase(number);
}

// Keeps the owner of a channel alive after the object that it served has ended, while other ranks
// may still send through this rank.
void GroupState::keep_open(std::uint32_t number, std::shared_ptr<void> owner) {
  const auto held = lock();
  FERRY_CHECK(nodes_.channels.contains(number), ==, true);
  nodes_.channels.at(number)->kept_open = std::move(owner);
}

void GroupState::begin_channels_at(std::uint64_t first) noexcept {
  const auto held = lock();
  nodes_.last_channel = static_cast<std::uint32_t>(first) - 1;
}

// Reads the messages that came before the channel was open.
void GroupState::release_channel(std::uint32_t number) {
  const auto held = lock();
  for (const auto& [view, from, message] : survival_.messages().take_held(number))
    read(from, message, /*kept=*/true);
}

}  // namespace ferry::internal
