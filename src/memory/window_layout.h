// WindowLayout: every byte offset of an exchange's segment, and the words that ranks share in it.
// Nowhere else does ferry do this arithmetic. docs/window_layout.md draws it.
//
//   segment: control of rank 0, 1, ... R-1 | window of rank 0, 1, ... of this node
//   control: ControlWords | ring of Records | ring of count rows
//   window:  buffer 0, 1, ... ; each: rows | sources | weights | topk_ids | scales
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ferry/exchange.h"

namespace ferry::internal {

// The flags of one rank. The owner is the only writer; both only grow (docs/protocol.md).
struct alignas(128) ControlWords {
  std::atomic<std::uint64_t> progress;      // 4 * number + Stage
  std::atomic<std::uint64_t> read_through;  // operations up to this one are finished here
};
static_assert(sizeof(ControlWords) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

enum class Stage : std::uint64_t { kAnnounced = 0, kGrown = 1, kDelivered = 2 };

constexpr std::uint64_t progress_of(std::uint64_t number, Stage stage) {
  return 4 * number + static_cast<std::uint64_t>(stage);
}

// A rank that destroyed its exchange: every wait passes, and its record is not that of the
// operation.
inline constexpr std::uint64_t kLeft = ~std::uint64_t{0};

enum class Kind : std::uint8_t { kNone, kDispatch, kCombine };

// A flag that must agree on all ranks, unless a rank has no rows to which it could apply.
enum class Agreed : std::uint8_t { kNo, kYes, kAny };

// What all ranks must agree on in one operation.
struct Terms {
  Kind kind = Kind::kNone;
  bool cached = false;
  Agreed weights = Agreed::kNo;  // dispatch: topk_weights travel; combine: row_weights come home
  DataType row_type = DataType::kBf16;
  std::uint32_t hidden = 0;
  std::uint64_t route = 0;       // number of the dispatch whose handle is used, 0: none
  std::uint32_t num_active = 0;  // ranks that take part
  std::uint32_t active = 0;      // digest of their list (ActiveSet)
};

// Dispatch: the receive buffer that a rank posts.
struct Posted {
  std::int64_t section_rows;  // rows backed with memory in each section
  std::uint64_t free_after;   // last operation that published rows of the buffer
  std::int32_t buffer;
  Code growth;  // outcome of growing; read after Stage::kGrown only
};

// Combine: the outputs that a rank publishes; offsets are from the start of its window.
struct Published {
  std::int64_t rows_offset;
  std::int64_t pitch_bytes;
  std::int64_t weights_offset;
};

// Published by a raised flag. Plain memory: written before the flag's release, read after its
// acquire. One cache line, but for the reason of a poison.
struct alignas(64) Record {
  std::uint64_t number = 0;
  Terms terms;
  Code status = Code::kOk;    // anything else: a poison; `reason` says why
  bool encoded = false;       // combine: the outputs are in the wire format of combine
  std::int32_t num_rows = 0;  // combine: of the outputs
  union {
    Posted posted = {};
    Published published;
  };
  char reason[192] = {};
};
static_assert(offsetof(Record, reason) == 64);

// What a configuration alone does not tell.
struct WindowShape {
  int num_ranks;
  int num_windows;          // ranks of a node, at most
  int num_columns;          // of the count matrix (ExpertMap)
  int max_local;            // most experts that any rank owns
  std::size_t row_bytes;    // of a received row
  std::size_t scale_bytes;  // of its scales
};

class WindowLayout {
 public:
  // Throws Error(kInvalidArgument) when sizes overflow.
  WindowLayout(const ExchangeConfig& config, const WindowShape& shape);

  // Inside the segment.
  std::size_t segment_bytes() const noexcept { return segment_bytes_; }
  std::size_t control(int rank) const noexcept { return rank * control_stride_; }
  std::size_t control_bytes() const noexcept { return control_stride_; }
  std::size_t record(int rank, std::uint64_t number) const noexcept {
    return control(rank) + records_ + (number & ring_mask_) * sizeof(Record);
  }
  std::size_t count_row(int rank, std::uint64_t number) const noexcept {
    return control(rank) + counts_ + (number & ring_mask_) * count_row_bytes_;
  }
  // By position in the node.
  std::size_t window(int index) const noexcept { return windows_ + index * window_bytes_; }
  std::size_t count_row_bytes() const noexcept { return count_row_bytes_; }

  // Inside a window.
  std::size_t window_bytes() const noexcept { return window_bytes_; }
  std::size_t buffer(int index) const noexcept { return index * buffer_bytes_; }
  std::size_t buffer_bytes() const noexcept { return buffer_bytes_; }
  int num_buffers() const noexcept { return num_buffers_; }
  int live_buffers() const noexcept { return live_buffers_; }

  // Inside a buffer.
  std::size_t rows() const noexcept { return 0; }
  std::size_t rows_bytes() const noexcept { return sources_; }
  std::size_t sources() const noexcept { return sources_; }
  std::size_t weights() const noexcept { return weights_; }
  std::size_t topk_ids() const noexcept { return topk_ids_; }
  std::size_t scales() const noexcept { return scales_; }

  // Sizes of a row's parts; 0 when the layout has none.
  std::size_t row_bytes() const noexcept { return row_bytes_; }
  std::size_t scale_bytes() const noexcept { return scale_bytes_; }
  std::size_t weights_per_row() const noexcept { return weights_per_row_; }
  std::size_t ids_per_row() const noexcept { return ids_per_row_; }

  // Sections of a receive buffer: one, or one per local expert with kPadded.
  std::int64_t section_stride() const noexcept {
    return section_stride_;
  }  // rows from one section to the next
  std::int64_t max_section_rows() const noexcept { return max_section_rows_; }
  std::int64_t expected_section_rows() const noexcept { return expected_section_rows_; }
  std::int64_t max_rows() const noexcept { return max_rows_; }  // of a receive buffer, all sections

  // How the scales of `section_rows` rows in each section lie; data is left null.
  Scales scale_strides(std::int64_t section_rows) const noexcept;
  // Bytes of the scales of the first `section_rows` rows of one section, with what lies between.
  std::size_t section_scale_bytes(std::int64_t section_rows) const noexcept;
  // Where those of a row begin, from scales().
  std::size_t scales_of(const Scales& strides, std::int64_t row) const noexcept {
    return row / section_stride_ * strides.section_stride +
           row % section_stride_ * strides.row_stride;
  }
  // Writes the scales of a row, scale_bytes() in a run, into a buffer.
  void put_scales(std::byte* buffer, const Scales& strides, std::int64_t row,
                  const std::byte* scales) const noexcept;

 private:
  std::size_t records_, counts_, count_row_bytes_, control_stride_;
  std::size_t windows_, window_bytes_, buffer_bytes_, sources_, weights_, topk_ids_, scales_,
      segment_bytes_;
  std::size_t row_bytes_, scale_bytes_, weights_per_row_, ids_per_row_;
  bool padded_, column_major_;
  std::int64_t section_stride_, max_section_rows_, expected_section_rows_, max_rows_;
  std::uint64_t ring_mask_;
  int num_buffers_, live_buffers_;
};

}  // namespace ferry::internal
