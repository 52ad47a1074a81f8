#include "memory/pool.h"

#include <algorithm>

#include "base/check.h"

namespace ferry::internal {

Pin::Pin(std::shared_ptr<Pool> pool, int buffer) : pool_(std::move(pool)), buffer_(buffer) {
  pool_->check_index(buffer_);
  const int before = pool_->buffers_[buffer_].pins.fetch_add(1, std::memory_order_relaxed);
  FERRY_CHECK(before, >=, 0);
}

// Release: the owner of the view reads before the pool finds the buffer free (acquire in
// free_buffer).
Pin::~Pin() { pool_->buffers_[buffer_].pins.fetch_sub(1, std::memory_order_release); }

Pool::Pool(std::shared_ptr<Segment> segment, const WindowLayout& layout, int index)
    : segment_(std::move(segment)),
      layout_(layout),
      window_offset_(index < 0 ? 0 : layout.window(index)),
      buffer_bytes_(index < 0 ? 0 : layout.buffer_bytes()),
      buffers_(layout.num_buffers()) {
  window_ = segment_->data() + window_offset_;
  FERRY_CHECK(window_offset_ % Segment::kHugePage, ==, 0U);
  FERRY_CHECK(window_offset_ + window_bytes(), <=, segment_->bytes());
  FERRY_CHECK(buffer_bytes_ % kChunk, ==, 0U);  // so that no two buffers share a chunk
  for (Buffer& buffer : buffers_) buffer.chunks.resize(buffer_bytes_ / kChunk);
}

void Pool::check_index(int buffer) const {
  FERRY_CHECK(buffer, >=, 0);
  FERRY_CHECK(buffer, <, layout_.num_buffers());
}

void Pool::mark_published(int buffer, std::uint64_t number) {
  check_index(buffer);
  FERRY_CHECK(number, >=, buffers_[buffer].published);
  buffers_[buffer].published = number;
}

void Pool::mark_used(int buffer) {
  check_index(buffer);
  buffers_[buffer].used = ++clock_;
}

void Pool::forget_published() noexcept {
  for (Buffer& buffer : buffers_) buffer.published = 0;
}

std::int64_t Pool::offset_of(const void* data) const {
  const std::int64_t offset = static_cast<const std::byte*>(data) - window_;
  FERRY_CHECK(offset, >=, 0);
  FERRY_CHECK(static_cast<std::size_t>(offset), <, window_bytes());
  return offset;
}

std::optional<int> Pool::free_buffer(std::optional<std::uint64_t> finished_through) const noexcept {
  std::optional<int> best;
  for (int i = 0; i < layout_.num_buffers(); ++i) {
    const Buffer& buffer = buffers_[i];
    if (buffer.pins.load(std::memory_order_acquire) != 0) continue;  // partner: ~Pin
    if (finished_through && buffer.published > *finished_through) continue;
    if (!best || buffer.used > buffers_[*best].used) best = i;
  }
  return best;
}

int Pool::num_pinned() const noexcept {
  return static_cast<int>(std::count_if(buffers_.begin(), buffers_.end(), [](const Buffer& buffer) {
    return buffer.pins.load(std::memory_order_relaxed) != 0;
  }));
}

bool Pool::back_rows(int buffer, int num_sections, std::int64_t rows) {
  check_index(buffer);
  FERRY_CHECK(num_sections, >=, 0);  // 0 with kPadded on a rank without experts
  FERRY_CHECK(rows, <=, layout_.max_section_rows());
  if (rows <= buffers_[buffer].backed_rows) return true;
  const auto back_part = [&](std::size_t part, std::size_t row_bytes) {
    for (int section = 0; section < num_sections; ++section) {
      const std::size_t first = section * layout_.section_stride() * row_bytes;
      if (!back(buffer, part + first, rows * row_bytes)) return false;
    }
    return true;
  };
  const bool backed = back_part(layout_.rows(), layout_.row_bytes()) &&
                      back_part(layout_.sources(), 3 * sizeof(std::int32_t)) &&
                      back_part(layout_.weights(), layout_.weights_per_row() * sizeof(float)) &&
                      back_part(layout_.topk_ids(), layout_.ids_per_row() * sizeof(std::int32_t)) &&
                      back_scales(buffer, num_sections, rows);
  if (backed) buffers_[buffer].backed_rows = rows;
  return backed;
}

bool Pool::back_scales(int buffer, int num_sections, std::int64_t rows) {
  const std::size_t bytes = layout_.section_scale_bytes(rows);
  const std::size_t stride = layout_.scale_strides(rows).section_stride;
  for (int section = 0; section < num_sections; ++section) {
    if (!back(buffer, layout_.scales() + section * stride, bytes)) return false;
  }
  return true;
}

bool Pool::back(int buffer, std::size_t offset, std::size_t length) {
  check_index(buffer);
  if (length == 0) return true;
  FERRY_CHECK(offset, <=, buffer_bytes_);
  FERRY_CHECK(length, <=, buffer_bytes_ - offset);
  std::vector<bool>& chunks = buffers_[buffer].chunks;
  std::size_t end = (offset + length + kChunk - 1) / kChunk;
  if (length >= Segment::kHugePage) {  // backs whole huge pages
    const std::size_t per_page = Segment::kHugePage / kChunk;
    end = std::min((end + per_page - 1) / per_page * per_page, chunks.size());
  }
  for (std::size_t i = offset / kChunk; i < end;) {
    std::size_t run = i;
    while (run < end && !chunks[run]) ++run;
    const std::size_t bytes = (run - i) * kChunk;
    if (bytes > 0 && !segment_->commit(window_offset_ + buffer * buffer_bytes_ + i * kChunk, bytes))
      return false;
    std::fill(chunks.begin() + i, chunks.begin() + run, true);
    backed_bytes_ += bytes;
    i = run + 1;
  }
  FERRY_CHECK(backed_bytes_, <=, window_bytes());
  return true;
}

Pool::Found Pool::find(const void* data, std::size_t length) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto window = reinterpret_cast<std::uintptr_t>(window_);
  Found found;
  found.in_window = begin + length > window && begin < window + window_bytes();
  if (!found.in_window || begin < window) return found;
  const std::size_t index = (begin - window) / buffer_bytes_;
  const std::uintptr_t rows = window + layout_.buffer(static_cast<int>(index)) + layout_.rows();
  const bool inside = index < buffers_.size() && begin + length <= rows + layout_.rows_bytes();
  if (inside && buffers_[index].pins.load(std::memory_order_acquire) != 0)
    found.buffer = static_cast<int>(index);
  return found;
}

}  // namespace ferry::internal
