// Pool: the buffers of this rank's window. Decides which buffer is posted, filled or copied into,
// knows until when ranks read it, and backs it with memory. Local: peers learn of a buffer only
// through records. Called by src/exchange: its dispatches and combines, and the views it gave.
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

// Keeps one buffer from being reused; held by views. Also keeps the memory mapped.
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
  // `index`: of my window.
  Pool(std::shared_ptr<Segment> segment, const WindowLayout& layout, int index);

  // The most recently used buffer without a pin: the warmest in the cache. With
  // `finished_through`, only one whose published rows all ranks have read.
  std::optional<int> free_buffer(std::optional<std::uint64_t> finished_through = {}) const noexcept;
  int num_pinned() const noexcept;

  std::uint64_t published(int buffer) const noexcept { return buffers_[buffer].published; }
  void mark_published(int buffer, std::uint64_t number);
  void mark_used(int buffer);

  // Backs the first `rows` rows of every section (and their metadata) of a receive buffer. False:
  // memory refused.
  bool back_rows(int buffer, int num_sections, std::int64_t rows);
  std::int64_t backed_rows(int buffer) const noexcept { return buffers_[buffer].backed_rows; }
  // Backs a range of a buffer.
  bool back(int buffer, std::size_t offset, std::size_t length);
  std::uint64_t backed_bytes() const noexcept { return backed_bytes_; }

  std::byte* data(int buffer) const noexcept { return window_ + layout_.buffer(buffer); }
  // The pinned buffer that holds all of [data, data + length), if any; `in_window` tells of any
  // overlap at all.
  struct Found {
    std::optional<int> buffer;
    bool in_window = false;
  };
  Found find(const void* data, std::size_t length) const noexcept;
  // Where `data` lies in the window, in bytes.
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
    std::vector<bool> chunks;  // backed with memory
  };

  std::shared_ptr<Segment> segment_;
  WindowLayout layout_;
  std::byte* window_;
  std::size_t window_offset_;
  std::vector<Buffer> buffers_;
  std::uint64_t clock_ = 0;
  std::uint64_t backed_bytes_ = 0;
};

}  // namespace ferry::internal
