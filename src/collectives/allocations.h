// Allocations: the part of the segment of a Collectives that this rank hands out to the caller. The
// other ranks of the node have it mapped, so they read data that lie there without a copy into a
// window.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/segment.h"

namespace ferry::internal {

class Allocations : public std::enable_shared_from_this<Allocations> {
 public:
  // [begin, begin + bytes) of the segment: whole pages of CollectivesLayout, or nothing.
  Allocations(std::shared_ptr<Segment> segment, std::size_t begin, std::size_t bytes);

  // Whole pages for the caller. They return to this object, and stay backed, when the last copy of
  // the pointer is gone. Throws Error(kCapacity). Any thread may call it.
  std::shared_ptr<void> take(std::size_t bytes);

  // The offset of `data` in the segment, or 0 unless all of it lies in memory of this object.
  std::size_t offset_of(const void* data, std::size_t bytes) const noexcept;

 private:
  struct Block {
    std::size_t begin, bytes;
    bool taken;
  };
  std::size_t reserve(std::size_t bytes);
  void give_back(std::size_t begin) noexcept;

  const std::shared_ptr<Segment> segment_;
  const std::size_t begin_, bytes_;
  std::mutex mutex_;           // guards blocks_
  std::vector<Block> blocks_;  // ascending and without gaps; no two neighbours are free
};

}  // namespace ferry::internal
