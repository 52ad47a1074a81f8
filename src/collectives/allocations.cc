#include "collectives/allocations.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/round_up.h"
#include "collectives/layout.h"
#include "ferry/status.h"
#include "memory/available.h"

namespace ferry::internal {

Allocations::Allocations(std::shared_ptr<Segment> segment, std::size_t begin, std::size_t bytes)
    : segment_(std::move(segment)), begin_(begin), bytes_(bytes) {
  if (bytes > 0) blocks_.push_back({begin, bytes, false});
}

std::shared_ptr<void> Allocations::take(std::size_t bytes) {
  if (bytes > bytes_) {
    throw Error(Code::kCapacity,
                fmt::format("{} bytes are requested, and shared_bytes is {}", bytes, bytes_));
  }
  constexpr std::size_t kPage = CollectivesLayout::kPage;
  const std::size_t begin = reserve(std::max(kPage, round_up(bytes, kPage)));
  std::shared_ptr<void> memory(segment_->data() + begin, [self = shared_from_this(), begin](void*) {
    self->give_back(begin);
  });
  if (segment_->commit(begin, bytes)) return memory;
  throw Error(Code::kCapacity,
              fmt::format("no memory for {} bytes: {} bytes are free", bytes, available_memory()));
}

// Returns the begin of the first free block of this size, which is then taken.
std::size_t Allocations::reserve(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      blocks_, [bytes](const Block& block) { return !block.taken && block.bytes >= bytes; });
  if (found == blocks_.end()) {
    throw Error(Code::kCapacity,
                fmt::format("no {} bytes in a row are left of shared_bytes, {}", bytes, bytes_));
  }
  const Block rest{found->begin + bytes, found->bytes - bytes, false};
  const std::size_t begin = found->begin, at = found - blocks_.begin();
  if (rest.bytes > 0) blocks_.insert(std::next(found), rest);
  blocks_[at] = {begin, bytes, true};
  return begin;
}

void Allocations::give_back(std::size_t begin) noexcept {
  const std::lock_guard lock(mutex_);
  auto block = std::ranges::lower_bound(blocks_, begin, {}, &Block::begin);
  block->taken = false;
  if (block != blocks_.begin() && !std::prev(block)->taken) {
    std::prev(block)->bytes += block->bytes;
    block = std::prev(blocks_.erase(block));
  }
  if (const auto next = std::next(block); next != blocks_.end() && !next->taken) {
    block->bytes += next->bytes;
    blocks_.erase(next);
  }
}

std::size_t Allocations::offset_of(const void* data, std::size_t bytes) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto first = reinterpret_cast<std::uintptr_t>(segment_->data()) + begin_;
  if (address < first || bytes > bytes_ || address - first > bytes_ - bytes) return 0;
  return begin_ + (address - first);
}

}  // namespace ferry::internal
