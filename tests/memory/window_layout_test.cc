// WindowLayout: all parts of a segment lie one after the other, aligned, and never overlap.
#include "memory/window_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "memory/segment.h"

namespace ferry::internal {
namespace {

constexpr std::size_t kPage = 4096;

ExchangeConfig config_of(Layout layout) {
  return {.max_tokens = 100,
          .hidden = 50,
          .num_experts = 12,
          .top_k = 4,
          .layout = layout,
          .expert_capacity = layout == Layout::kPadded ? 37 : 0};
}

WindowShape shape_of(const ExchangeConfig& config) {
  return {.num_ranks = 5,
          .num_sources = 5,
          .node_ranks = 3,
          .num_row_lists = 3,
          .num_windows = 3,
          .num_columns = 12,
          .max_local = 3,
          .row_bytes = 2 * static_cast<std::size_t>(config.hidden),
          .scale_bytes = 24,
          .flags_bytes = 200,
          .record_bytes = 136};
}

struct Part {
  std::string name;
  std::size_t begin, bytes, alignment;
};

// In ascending order, inside [0, end).
void expect_disjoint(std::vector<Part> parts, std::size_t end) {
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t next = i + 1 < parts.size() ? parts[i + 1].begin : end;
    EXPECT_EQ(parts[i].begin % parts[i].alignment, 0u) << parts[i].name;
    EXPECT_LE(parts[i].begin + parts[i].bytes, next) << parts[i].name;
  }
}

constexpr Layout kLayouts[] = {Layout::kExpertMajor, Layout::kRankMajor, Layout::kPadded};

TEST(WindowLayout, ControlPartsAndWindowsDoNotOverlap) {
  for (const Layout kind : kLayouts) {
    const ExchangeConfig config = config_of(kind);
    WindowShape shape = shape_of(config);
    shape.shared_sums = true;
    const WindowLayout layout(config, shape);
    std::vector<Part> parts;
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
      parts.push_back({"flags", layout.control(rank), shape.flags_bytes, kPage});
      for (std::uint64_t number = 0; number < 2u * config.depth; ++number) {
        parts.push_back({"record", layout.record(rank, number), shape.record_bytes, 8});
        parts.push_back({"counts", layout.count_row(rank, number), layout.count_row_bytes(), 64});
      }
    }
    for (int i = 0; i < shape.num_windows; ++i) {
      parts.push_back({"sums", layout.sums_before(i), layout.count_row_bytes(), 64});
      parts.push_back({"totals", layout.total_sums(i), layout.count_row_bytes(), 64});
      for (std::uint64_t number = 0; number < static_cast<std::uint64_t>(config.depth); ++number)
        parts.push_back({"list", layout.row_list(i, number), layout.row_list_bytes(), 64});
      parts.push_back({"window", layout.window(i), layout.window_bytes(), Segment::kHugePage});
    }
    expect_disjoint(parts, layout.segment_bytes());
  }
}

TEST(WindowLayout, PartsOfABufferDoNotOverlap) {
  for (const Layout kind : kLayouts) {
    const ExchangeConfig config = config_of(kind);
    const WindowLayout layout(config, shape_of(config));
    const std::size_t rows = layout.max_rows();
    const bool rank_major = kind == Layout::kRankMajor;
    EXPECT_EQ(layout.weights_per_row(), rank_major ? 4u : 1u);
    EXPECT_EQ(layout.ids_per_row(), rank_major ? 4u : 0u);
    expect_disjoint({{"rows", layout.rows(), rows * layout.row_bytes(), kPage},
                     {"sources", layout.sources(), rows * 12, kPage},
                     {"weights", layout.weights(), rows * 4 * layout.weights_per_row(), kPage},
                     {"ids", layout.topk_ids(), rows * 4 * layout.ids_per_row(), kPage},
                     {"scales", layout.scales(), rows * layout.scale_bytes(), kPage}},
                    layout.buffer_bytes());
    EXPECT_EQ(layout.window_bytes(), layout.num_buffers() * layout.buffer_bytes());
  }
}

TEST(WindowLayout, AListHasRoomForTheRowsThatARankSends) {
  for (const Layout kind : kLayouts) {
    ExchangeConfig config = config_of(kind);
    config.top_k = 7;
    const WindowLayout layout(config, shape_of(config));
    const bool rank_major = kind == Layout::kRankMajor;
    const std::size_t rows = 100 * (rank_major ? 5 : 7);  // at most one for each of 5 ranks
    EXPECT_EQ(layout.listed_row_bytes(), rank_major ? 4u * (3 + 7 + 7) : 8u);
    EXPECT_GE(layout.listed_rows(), 5 * sizeof(std::int32_t));
    EXPECT_GE(layout.row_list_bytes(), layout.listed_rows() + rows * layout.listed_row_bytes());
    EXPECT_GE(layout.row_lists_bytes(), config.depth * layout.row_list_bytes());
  }
}

TEST(WindowLayout, TheWorstCaseIsEveryTokenOfEveryRank) {
  ExchangeConfig config = config_of(Layout::kExpertMajor);
  config.expert_alignment = 8;
  EXPECT_EQ(WindowLayout(config, shape_of(config)).max_rows(), 100 * 5 * 4 + 3 * 7);
  config = config_of(Layout::kRankMajor);
  EXPECT_EQ(WindowLayout(config, shape_of(config)).max_rows(), 100 * 5);
  config = config_of(Layout::kPadded);
  const WindowLayout padded(config, shape_of(config));
  EXPECT_EQ(padded.max_rows(), 3 * 37);
  EXPECT_EQ(padded.section_stride(), 37);
  config = config_of(Layout::kExpertMajor);
  config.row_capacity = 77;
  EXPECT_EQ(WindowLayout(config, shape_of(config)).max_rows(), 77);
}

TEST(WindowLayout, RecordsOfTwoOperationsInARowAreApart) {
  for (const int depth : {1, 2, 3, 16}) {
    ExchangeConfig config = config_of(Layout::kExpertMajor);
    config.depth = depth;
    const WindowLayout layout(config, shape_of(config));
    for (std::uint64_t number = 1; number < 2u * depth; ++number)
      EXPECT_NE(layout.record(0, 1000), layout.record(0, 1000 + number)) << depth;
  }
}

TEST(WindowLayout, WhatCannotBeAddressedIsRefused) {
  ExchangeConfig config = config_of(Layout::kExpertMajor);
  config.max_tokens = std::int64_t{1} << 40;
  try {
    WindowLayout(config, shape_of(config));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("max_tokens 1099511627776"));
    EXPECT_THAT(error.what(), testing::HasSubstr("2147483647"));
  }
  WindowShape shape = shape_of(config_of(Layout::kPadded));
  config = config_of(Layout::kPadded);
  config.expert_capacity = 600'000'000;
  shape.row_bytes = std::size_t{1} << 20;
  EXPECT_THROW(WindowLayout(config, shape), Error);
}

// Every scale of every row has bytes of its own, inside the scales of the buffer.
TEST(WindowLayout, ScalesOfEveryOrderHaveTheirOwnPlaces) {
  for (const Layout kind : {Layout::kExpertMajor, Layout::kPadded}) {
    for (const ScaleOrder order : {ScaleOrder::kRowMajor, ScaleOrder::kColumnMajor}) {
      ExchangeConfig config = config_of(kind);
      config.scale_order = order;
      const WindowLayout layout(config, shape_of(config));
      const std::int64_t section_rows = kind == Layout::kPadded ? 20 : layout.max_rows();
      const Scales strides = layout.scale_strides(section_rows);
      std::vector<std::byte> buffer(layout.buffer_bytes());
      const std::int64_t sections = kind == Layout::kPadded ? 3 : 1;
      const auto row_at = [&](std::int64_t i) {
        return i / section_rows * layout.section_stride() + i % section_rows;
      };
      for (std::int64_t i = 0; i < sections * section_rows; ++i) {
        std::uint32_t scales[6];
        for (int s = 0; s < 6; ++s) scales[s] = static_cast<std::uint32_t>(1 + 6 * i + s);
        layout.put_scales(buffer.data(), strides, row_at(i),
                          reinterpret_cast<const std::byte*>(scales));
      }
      for (std::int64_t i = 0; i < sections * section_rows; ++i) {
        for (int s = 0; s < 6; ++s) {
          std::uint32_t found = 0;
          std::memcpy(&found,
                      buffer.data() + layout.scales() + layout.scales_of(strides, row_at(i)) +
                          s * strides.column_stride,
                      sizeof(found));
          ASSERT_EQ(found, 1 + 6 * i + s) << "row " << i << ", scale " << s;
        }
      }
      const std::size_t end =
          (sections - 1) * strides.section_stride + layout.section_scale_bytes(section_rows);
      EXPECT_LE(layout.scales() + end, layout.buffer_bytes());
    }
  }
}

}  // namespace
}  // namespace ferry::internal
