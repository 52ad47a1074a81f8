// Pool: the buffers of this rank's window. It chooses a buffer for an operation, keeps for each
// buffer the number of the last operation that published rows of it, and backs buffers with memory.
// Peers know of a buffer only through records.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "memory/segment.h"
#include "memory/window_layout.h"

namespace ferry::internal {

class Pool;

// While a Pin of a buffer lives, the buffer is not reused and its memory stays mapped. Views hold
// pins.
class Pin {
 public:
  Pin(std::shared_ptr<Pool> pool, int buffer);
  ~Pin();
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  std::shared_ptr<Pool> pool_;
  int buffer_;
};

class Pool {
 public:
  // `index`: the window of this rank in the segment; -1: it has none, and buffers have no bytes.
  Pool(std::shared_ptr<Segment> segment, const WindowLayout& layout, int index);

  // The most recently used buffer without a pin, since its lines are the likeliest in the cache.
  // With `finished_through`: only buffers whose published rows all ranks have read, that is,
  // published by an operation up to this number.
  std::optional<int> free_buffer(std::optional<std::uint64_t> finished_through = {}) const noexcept;
  int num_pinned() const noexcept;

  std::uint64_t published(int buffer) const noexcept { return buffers_[buffer].published; }
  void mark_published(int buffer, std::uint64_t number);
  void mark_used(int buffer);
  // Forgets which rows were published: no rank reads them any more.
  void forget_published() noexcept;

  // Backs the first `rows` rows of every section (and their metadata) of a receive buffer. False:
  // memory refused.
  bool back_rows(int buffer, int num_sections, std::int64_t rows);
  std::int64_t backed_rows(int buffer) const noexcept { return buffers_[buffer].backed_rows; }
  // Backs a range of a buffer.
  bool back(int buffer, std::size_t offset, std::size_t length);
  std::uint64_t backed_bytes() const noexcept { return backed_bytes_; }

  // Not null. Without a window it is not to be read.
  std::byte* data(int buffer) const noexcept { return window_ + buffer * buffer_bytes_; }
  std::size_t window_bytes() const noexcept { return buffers_.size() * buffer_bytes_; }
  // The pinned buffer whose rows hold all of [data, data + length), if there is one. `in_window`:
  // the range overlaps the window.
  struct Found {
    std::optional<int> buffer;
    bool in_window = false;
  };
  Found find(const void* data, std::size_t length) const noexcept;
  // The offset of `data` in the window, in bytes.
  std::int64_t offset_of(const void* data) const;

 private:
  friend class Pin;
  void check_index(int buffer) const;
  bool back_scales(int buffer, int num_sections, std::int64_t rows);
  static constexpr std::size_t kChunk = std::size_t{64} << 10;

  struct Buffer {
    std::atomic<int> pins{0};
    std::uint64_t published = 0;  // last operation that published rows of it
    std::uint64_t used = 0;       // larger: more recently
    std::int64_t backed_rows = 0;
    std::vector<bool> chunks;  // whether each is backed with memory
  };

  std::shared_ptr<Segment> segment_;
  WindowLayout layout_;
  std::byte* window_;
  std::size_t window_offset_, buffer_bytes_;
  std::vector<Buffer> buffers_;
  std::uint64_t clock_ = 0;
  std::uint64_t backed_bytes_ = 0;
};

}  // namespace ferry::internal
