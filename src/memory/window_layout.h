// WindowLayout: every byte offset of an exchange's segment. Nowhere else does ferry do this
// arithmetic. docs/window_layout.md draws it; exchange/setup/record.h has what lies in a control
// part.
//
//   segment: control of rank 0, 1, ... R-1 | sums of rank 0, 1, ... of this node
//            | row lists of its ranks with tokens | windows of its ranks with experts
//   control: flags | ring of records | ring of count rows
//   row lists: a ring of them; each: where the rows of each member start | rows
//   window:  buffer 0, 1, ... ; each: rows | sources | weights | topk_ids | scales
#pragma once

#include <cstddef>
#include <cstdint>

#include "ferry/exchange.h"

namespace ferry::internal {

// Sizes that do not follow from the configuration alone.
struct WindowShape {
  int num_ranks;
  int num_sources;          // ranks that dispatch tokens
  int node_ranks;           // the most ranks of a node
  int num_row_lists;        // ranks of a node that dispatch tokens, at most
  int num_windows;          // ranks of a node that own experts, at most
  int num_columns;          // columns of the count matrix (ExpertMap)
  int max_local;            // most experts that any rank owns
  std::size_t row_bytes;    // bytes of a received row
  std::size_t scale_bytes;  // bytes of its scales
  std::size_t flags_bytes;  // flags of one rank
  std::size_t record_bytes;
  bool shared_sums = false;  // sums of count rows (place_rows.cc)
};

// The metadata of a row in the list of its source, in the expert layouts. The receiver knows the
// source from the list that it reads, and the expert from the counts.
struct ListedRow {
  std::int32_t entry;  // index in [T, entries]
  float weight;
};

// Rows in the buffer of a rank when every token of every source rank goes to it, or row_capacity if
// that is less; with kPadded, the rows of all sections. Throws Error(kInvalidArgument) when an
// int32 cannot number them.
std::int64_t worst_rows(const ExchangeConfig& config, int max_local, int num_sources);

class WindowLayout {
 public:
  // Throws Error(kInvalidArgument) when sizes overflow.
  WindowLayout(const ExchangeConfig& config, const WindowShape& shape);

  // Offsets inside the segment.
  std::size_t segment_bytes() const noexcept { return segment_bytes_; }
  std::size_t control(int rank) const noexcept { return rank * control_.stride; }
  std::size_t control_bytes() const noexcept { return control_.stride; }
  std::size_t record(int rank, std::uint64_t number) const noexcept {
    return control(rank) + control_.records + (number & control_.ring_mask) * control_.record_bytes;
  }
  std::size_t count_row(int rank, std::uint64_t number) const noexcept {
    return control(rank) + control_.counts +
           (number & control_.ring_mask) * control_.count_row_bytes;
  }
  // Sums of count rows, which the ranks of the node make together (place_rows.cc): over the ranks
  // before a local_rank, and over all. They have no bytes where shared_sums is not set.
  std::size_t sums_before(int local_rank) const noexcept {
    return sums_.begin + local_rank * sums_.stride;
  }
  std::size_t total_sums(int local_rank) const noexcept {
    return sums_before(local_rank) + control_.count_row_bytes;
  }
  std::size_t sums_bytes() const noexcept { return sums_.stride; }
  // A list that a rank makes of the rows that it sends (exchange/dispatch/row_metadata.h). `index`
  // counts the ranks of the node that have row lists, and that of window() the ranks that have
  // windows (SegmentPlaces).
  std::size_t row_list(int index, std::uint64_t number) const noexcept {
    return row_lists(index) + (number & lists_.ring_mask) * lists_.bytes;
  }
  std::size_t row_lists(int index) const noexcept { return lists_.begin + index * lists_.stride; }
  std::size_t row_lists_bytes() const noexcept { return lists_.stride; }
  std::size_t row_list_bytes() const noexcept { return lists_.bytes; }
  std::size_t window(int index) const noexcept { return windows_ + index * window_bytes_; }
  std::size_t count_row_bytes() const noexcept { return control_.count_row_bytes; }

  // Offsets inside a window.
  std::size_t window_bytes() const noexcept { return window_bytes_; }
  std::size_t buffer(int index) const noexcept { return index * buffer_.bytes; }
  std::size_t buffer_bytes() const noexcept { return buffer_.bytes; }
  int num_buffers() const noexcept { return num_buffers_; }
  int live_buffers() const noexcept { return live_buffers_; }

  // Offsets inside a buffer.
  std::size_t rows() const noexcept { return 0; }
  std::size_t rows_bytes() const noexcept { return buffer_.sources; }
  std::size_t sources() const noexcept { return buffer_.sources; }
  std::size_t weights() const noexcept { return buffer_.weights; }
  std::size_t topk_ids() const noexcept { return buffer_.topk_ids; }
  std::size_t scales() const noexcept { return buffer_.scales; }

  // Sizes of a row's parts; 0 when the layout has none.
  std::size_t row_bytes() const noexcept { return row_.bytes; }
  std::size_t scale_bytes() const noexcept { return row_.scale_bytes; }
  std::size_t weights_per_row() const noexcept { return row_.weights; }
  std::size_t ids_per_row() const noexcept { return row_.ids; }
  std::size_t metadata_bytes() const noexcept { return row_.metadata_bytes(); }

  // Offsets inside a row list.
  std::size_t listed_rows() const noexcept { return lists_.rows; }
  // A row of the list has its entry and its weight; with kRankMajor all its metadata.
  std::size_t listed_row_bytes() const noexcept {
    return row_.ids == 0 ? sizeof(ListedRow) : row_.metadata_bytes();
  }

  // Sections of a receive buffer: one, or one per local expert with kPadded.
  // The rows from the start of a section to the start of the next one.
  std::int64_t section_stride() const noexcept { return section_.stride; }
  std::int64_t max_section_rows() const noexcept { return section_.max_rows; }
  std::int64_t expected_section_rows() const noexcept { return section_.expected_rows; }
  std::int64_t max_rows() const noexcept { return max_rows_; }  // of a receive buffer, all sections

  // The strides of the scales of `section_rows` rows in each section; data is null.
  Scales scale_strides(std::int64_t section_rows) const noexcept;
  // Bytes of the scales of the first `section_rows` rows of one section, with the gaps between
  // columns.
  std::size_t section_scale_bytes(std::int64_t section_rows) const noexcept;
  // The offset of a row's scales, relative to scales().
  std::size_t scales_of(const Scales& strides, std::int64_t row) const noexcept {
    return row / section_.stride * strides.section_stride +
           row % section_.stride * strides.row_stride;
  }
  // Writes the scales of a row, scale_bytes() in a run, into a buffer.
  void put_scales(std::byte* buffer, const Scales& strides, std::int64_t row,
                  const std::byte* scales) const noexcept;

 private:
  struct Control {
    std::size_t records, record_bytes, counts, count_row_bytes, stride;
    std::uint64_t ring_mask;
  };
  struct Sums {
    std::size_t begin, stride;
  };
  struct Buffer {
    std::size_t sources, weights, topk_ids, scales, bytes;
  };
  struct Row {
    std::size_t bytes, scale_bytes, weights, ids;
    std::size_t metadata_bytes() const noexcept { return 4 * (3 + weights + ids); }
  };
  struct Lists {
    std::size_t begin, stride, rows, bytes;
    std::uint64_t ring_mask;
  };
  struct Section {
    std::int64_t stride, max_rows, expected_rows;
  };

  void check_parts(const WindowShape& shape) const;
  void check_buffer(std::size_t widest_row) const;

  Control control_;
  Sums sums_;
  Lists lists_;
  Buffer buffer_;
  Row row_;
  Section section_;
  bool padded_, column_major_;
  std::int64_t max_rows_;
  int num_buffers_, live_buffers_;
  std::size_t windows_, window_bytes_, segment_bytes_;
};

}  // namespace ferry::internal
