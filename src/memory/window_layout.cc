#include "memory/window_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/round_up.h"
#include "memory/accumulator.h"
#include "memory/segment.h"

namespace ferry::internal {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 64;
// The most address space that one exchange reserves. An exchange that would need more has buffers
// smaller than the worst case (docs/window_layout.md).
constexpr std::size_t kMaxAddressBytes = std::size_t{1} << 45;
// Rows that a buffer holds before it must grow, relative to balanced routing.
constexpr double kMargin = 1.25;

// Rows of a section with balanced routing, and a margin.
std::int64_t expected_rows(const ExchangeConfig& config, const WindowShape& shape) {
  if (config.layout == Layout::kPadded && config.zero_gaps)
    return config.expert_capacity;  // zero_gaps writes the whole section
  const double tokens = static_cast<double>(config.max_tokens) * shape.num_sources;
  const double per_expert = tokens * config.top_k / config.num_experts;
  const double share = std::min(1.0, static_cast<double>(shape.max_local) / config.num_experts);
  double rows = per_expert;
  if (config.layout == Layout::kExpertMajor) rows = per_expert * shape.max_local;
  // The probability that a token has an expert on a rank with max_local experts.
  if (config.layout == Layout::kRankMajor) rows = (1 - std::pow(1 - share, config.top_k)) * tokens;
  if (config.shared.num_ranks > 0)
    rows = std::max(rows, tokens * config.shared.num_experts / config.shared.num_ranks);
  const bool aligned = config.layout == Layout::kExpertMajor;
  return static_cast<std::int64_t>(std::ceil(rows * kMargin)) +
         (aligned ? shape.max_local * (config.expert_alignment - 1) : 0);
}

// The most rows that a rank can send in a dispatch.
std::size_t most_sent_rows(const ExchangeConfig& config, int num_ranks) {
  const int entries = config.top_k + config.shared.num_experts;
  const bool by_rank = config.layout == Layout::kRankMajor;
  return checked_mul(config.max_tokens, by_rank ? std::min(entries, num_ranks) : entries);
}

constexpr std::int64_t kColumnMultiple = 4;  // rows: columns start at multiples of 16 bytes

}  // namespace

std::int64_t worst_rows(const ExchangeConfig& config, int max_local, int num_sources) {
  const std::size_t tokens = checked_mul(config.max_tokens, num_sources);
  std::size_t rows = tokens;
  if (config.layout == Layout::kExpertMajor) {
    rows = checked_mul(tokens, config.top_k + config.shared.num_experts) +
           checked_mul(max_local, config.expert_alignment - 1);
  } else if (config.layout == Layout::kPadded) {
    rows = checked_mul(max_local, config.expert_capacity);
  }
  if (config.row_capacity > 0) rows = std::min<std::size_t>(rows, config.row_capacity);
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  if (rows > kMost) {
    throw Error(Code::kInvalidArgument,
                fmt::format("a rank could receive {} rows (max_tokens {}, {} ranks, top_k {}), the "
                            "limit is {}; set row_capacity",
                            rows, config.max_tokens, num_sources, config.top_k, kMost));
  }
  return static_cast<std::int64_t>(std::max<std::size_t>(rows, 1));
}

WindowLayout::WindowLayout(const ExchangeConfig& config, const WindowShape& shape)
    : padded_(config.layout == Layout::kPadded),
      column_major_(config.scale_order == ScaleOrder::kColumnMajor),
      live_buffers_(2 * config.depth + 2) {
  const int num_ranks = shape.num_ranks;
  const bool rank_major = config.layout == Layout::kRankMajor;
  // Buffers of views, of dispatches in flight, of rows that a rank still reads, and one that is
  // free (docs/protocol.md).
  num_buffers_ = live_buffers_ + 3 * config.depth;
  row_ = {.bytes = shape.row_bytes,
          .scale_bytes = shape.scale_bytes,
          .weights = static_cast<std::size_t>(rank_major ? config.top_k : 1),
          .ids = static_cast<std::size_t>(rank_major ? config.top_k : 0)};

  Accumulator control;
  control_.ring_mask = std::bit_ceil(2u * config.depth) - 1;
  control_.record_bytes = shape.record_bytes;
  control.take(shape.flags_bytes, 128);
  control_.records = control.take((control_.ring_mask + 1) * control_.record_bytes, 128);
  control_.count_row_bytes =
      (shape.num_columns + (rank_major ? num_ranks : 0)) * sizeof(std::int32_t);
  control_.count_row_bytes = round_up(control_.count_row_bytes, kLine);
  control_.counts = control.take((control_.ring_mask + 1) * control_.count_row_bytes, 128);
  control_.stride = control.align(kPage);

  const std::int64_t sections = padded_ ? shape.max_local : 1;
  max_rows_ = worst_rows(config, shape.max_local, shape.num_sources);
  const std::size_t widest_row = std::max<std::size_t>(row_.bytes, config.max_output_row_bytes);
  const std::size_t row_cost = widest_row + row_.scale_bytes + row_.metadata_bytes();
  const std::size_t address_rows = kMaxAddressBytes / shape.num_windows / num_buffers_ / row_cost;
  max_rows_ = std::min<std::int64_t>(max_rows_, std::max<std::size_t>(address_rows, 1));
  section_.stride = padded_ ? config.expert_capacity : max_rows_;
  section_.max_rows = std::min(section_.stride, max_rows_);
  section_.expected_rows = std::min(section_.max_rows, expected_rows(config, shape));
  if (config.row_capacity > 0) section_.expected_rows = section_.max_rows;
  if (padded_ && max_rows_ < sections * section_.stride) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("{} experts of {} rows with a hidden of {} are more than can be addressed",
                    sections, section_.stride, config.hidden));
  }

  Accumulator buffer;
  buffer.take(checked_mul(max_rows_, widest_row), Segment::kHugePage);
  buffer_.sources = buffer.align(kPage);
  buffer.take(checked_mul(max_rows_, 3 * sizeof(std::int32_t)), kPage);
  buffer_.weights = buffer.take(checked_mul(max_rows_, row_.weights * sizeof(float)), kPage);
  buffer_.topk_ids = buffer.take(checked_mul(max_rows_, row_.ids * sizeof(std::int32_t)), kPage);
  buffer_.scales = buffer.take(
      checked_mul(sections * round_up(padded_ ? section_.stride : max_rows_, kColumnMultiple),
                  row_.scale_bytes),
      kPage);
  buffer_.bytes = buffer.align(Segment::kHugePage);
  window_bytes_ = checked_mul(buffer_.bytes, num_buffers_);

  Accumulator segment;
  segment.take(checked_mul(control_.stride, num_ranks), kPage);
  sums_.stride = shape.shared_sums ? round_up(2 * control_.count_row_bytes, kPage) : 0;
  sums_.begin = segment.take(checked_mul(sums_.stride, shape.node_ranks), kPage);
  Accumulator list;
  list.take(num_ranks * sizeof(std::int32_t), kLine);
  lists_.rows = list.align(kLine);
  list.take(checked_mul(most_sent_rows(config, num_ranks), listed_row_bytes()), kLine);
  lists_.bytes = list.align(kLine);
  lists_.ring_mask = std::bit_ceil(static_cast<unsigned>(config.depth)) - 1;
  lists_.stride = round_up(checked_mul(lists_.ring_mask + 1, lists_.bytes), kPage);
  lists_.begin = segment.take(checked_mul(lists_.stride, shape.num_row_lists), kPage);
  windows_ = segment.align(Segment::kHugePage);
  segment.take(checked_mul(window_bytes_, shape.num_windows), Segment::kHugePage);
  segment_bytes_ = segment.align(Segment::kHugePage);
  check_parts(shape);
  check_buffer(widest_row);
}

// The parts of a segment follow each other as window_layout.h draws them.
void WindowLayout::check_parts(const WindowShape& shape) const {
  const std::size_t ring = control_.ring_mask + 1;
  FERRY_CHECK(control_.records, >=, shape.flags_bytes);
  FERRY_CHECK(control_.counts, >=, control_.records + ring * control_.record_bytes);
  FERRY_CHECK(control_.stride, >=, control_.counts + ring * control_.count_row_bytes);
  FERRY_CHECK(sums_.begin, >=, control_.stride * shape.num_ranks);
  FERRY_CHECK(lists_.begin, >=, sums_.begin + sums_.stride * shape.node_ranks);
  FERRY_CHECK(lists_.stride, >=, (lists_.ring_mask + 1) * lists_.bytes);
  FERRY_CHECK(windows_, >=, lists_.begin + lists_.stride * shape.num_row_lists);
  FERRY_CHECK(windows_ % Segment::kHugePage, ==, 0U);
  FERRY_CHECK(segment_bytes_, >=, windows_ + window_bytes_ * shape.num_windows);
}

// The parts of a buffer, and the rows that fit into them.
void WindowLayout::check_buffer(std::size_t widest_row) const {
  const std::size_t rows = max_rows_;
  FERRY_CHECK(live_buffers_, <, num_buffers_);
  FERRY_CHECK(buffer_.sources, >=, rows * widest_row);
  FERRY_CHECK(buffer_.weights, >=, buffer_.sources + rows * 3 * sizeof(std::int32_t));
  FERRY_CHECK(buffer_.topk_ids, >=, buffer_.weights + rows * row_.weights * sizeof(float));
  FERRY_CHECK(buffer_.scales, >=, buffer_.topk_ids + rows * row_.ids * sizeof(std::int32_t));
  FERRY_CHECK(buffer_.bytes, >=, buffer_.scales + rows * row_.scale_bytes);
  FERRY_CHECK(buffer_.bytes % Segment::kHugePage, ==, 0U);
  FERRY_CHECK(section_.max_rows, <=, section_.stride);
  FERRY_CHECK(section_.expected_rows, <=, section_.max_rows);
}

// In a padded section the columns are expert_capacity rows apart.
std::size_t WindowLayout::section_scale_bytes(std::int64_t section_rows) const noexcept {
  if (section_rows == 0) return 0;
  const Scales strides = scale_strides(section_rows);
  return column_major_ ? strides.columns * strides.column_stride
                       : section_rows * strides.row_stride;
}

Scales WindowLayout::scale_strides(std::int64_t section_rows) const noexcept {
  const auto bytes = static_cast<std::int64_t>(row_.scale_bytes);
  Scales strides;
  strides.element_bytes = bytes % 4 == 0 ? 4 : 1;
  strides.columns = bytes / strides.element_bytes;
  strides.row_stride = column_major_ ? strides.element_bytes : bytes;
  strides.column_stride = strides.element_bytes;
  if (column_major_)
    strides.column_stride *= round_up(padded_ ? section_.stride : section_rows, kColumnMultiple);
  strides.section_stride =
      padded_ ? (column_major_ ? strides.columns * strides.column_stride : section_.stride * bytes)
              : 0;
  return strides;
}

void WindowLayout::put_scales(std::byte* buffer, const Scales& strides, std::int64_t row,
                              const std::byte* scales) const noexcept {
  std::byte* to = buffer + buffer_.scales + scales_of(strides, row);
  if (strides.column_stride == strides.element_bytes) {
    std::memcpy(to, scales, row_.scale_bytes);
    return;
  }
  for (std::int64_t column = 0; column < strides.columns; ++column)
    std::memcpy(to + column * strides.column_stride, scales + column * 4, 4);
}

}  // namespace ferry::internal
