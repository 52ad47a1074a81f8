// Pool: which buffer is free, which holds an address, and how much memory backs it.
#include "memory/pool.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <set>

namespace ferry::internal {
namespace {

constexpr int kIndex = 1;  // of this rank's window; another lies before it

ExchangeConfig small_window() {
  return {.max_tokens = 40'000, .hidden = 64, .num_experts = 4, .top_k = 1};
}

struct Place {
  WindowLayout layout{small_window(),
                      {.num_ranks = 2,
                       .num_sources = 2,
                       .node_ranks = 2,
                       .num_row_lists = 2,
                       .num_windows = 2,
                       .num_columns = 4,
                       .max_local = 2,
                       .row_bytes = 128,
                       .scale_bytes = 0,
                       .flags_bytes = 128,
                       .record_bytes = 128}};
  std::shared_ptr<Segment> segment = Segment::create(layout.segment_bytes());
  std::shared_ptr<Pool> pool = std::make_shared<Pool>(segment, layout, kIndex);
};

TEST(Pool, APinnedBufferIsNotFree) {
  const Place place;
  std::deque<Pin> pins;
  std::set<int> given;
  for (int i = 0; i < place.layout.num_buffers(); ++i) {
    const std::optional<int> buffer = place.pool->free_buffer();
    ASSERT_TRUE(buffer.has_value());
    EXPECT_TRUE(given.insert(*buffer).second) << "buffer " << *buffer << " is pinned";
    pins.emplace_back(place.pool, *buffer);
    EXPECT_EQ(place.pool->num_pinned(), i + 1);
  }
  EXPECT_EQ(place.pool->free_buffer(), std::nullopt);
  pins.pop_front();
  EXPECT_EQ(place.pool->free_buffer(), 0);
}

TEST(Pool, TwoPinsAreTakenOffOneByOne) {
  const Place place;
  auto first = std::make_unique<Pin>(place.pool, 0);
  const Pin second(place.pool, 0);
  first.reset();
  EXPECT_NE(place.pool->free_buffer(), 0);
  EXPECT_EQ(place.pool->num_pinned(), 1);
}

TEST(Pool, TheMostRecentlyUsedOfTheFreeComesFirst) {
  const Place place;
  place.pool->mark_used(4);
  place.pool->mark_used(2);
  EXPECT_EQ(place.pool->free_buffer(), 2);
  const Pin pin(place.pool, 2);
  EXPECT_EQ(place.pool->free_buffer(), 4);
}

TEST(Pool, RowsThatSomebodyStillReadsKeepTheirBuffer) {
  const Place place;
  for (int i = 0; i < place.layout.num_buffers(); ++i) place.pool->mark_published(i, 10 + i);
  EXPECT_EQ(place.pool->free_buffer(9), std::nullopt);
  EXPECT_EQ(place.pool->free_buffer(10), 0);
  place.pool->mark_used(1);
  EXPECT_EQ(place.pool->free_buffer(10), 0);
  EXPECT_EQ(place.pool->free_buffer(11), 1);
  EXPECT_TRUE(place.pool->free_buffer().has_value());
}

TEST(Pool, AnAddressIsFoundInThePinnedBufferThatHoldsAllOfIt) {
  const Place place;
  const Pin pin(place.pool, 1);
  const std::byte* rows = place.pool->data(1);
  const std::size_t bytes = place.layout.rows_bytes();
  EXPECT_EQ(place.pool->offset_of(rows), static_cast<std::int64_t>(place.layout.buffer(1)));
  EXPECT_EQ(place.pool->find(rows, bytes).buffer, 1);
  EXPECT_EQ(place.pool->find(rows + 1, bytes - 1).buffer, 1);
  const Pool::Found past = place.pool->find(rows + 1, bytes);
  EXPECT_TRUE(past.in_window);
  EXPECT_EQ(past.buffer, std::nullopt);
  EXPECT_EQ(place.pool->find(place.pool->data(2), 64).buffer, std::nullopt) << "it has no pin";
  const std::byte* window = place.pool->data(0);
  EXPECT_FALSE(place.pool->find(window - 64, 64).in_window);
  EXPECT_TRUE(place.pool->find(window - 64, 65).in_window);
  EXPECT_FALSE(place.pool->find(window + place.layout.window_bytes(), 64).in_window);
}

TEST(Pool, RowsAreBackedOnceAndOnlyTheirs) {
  const Place place;
  EXPECT_EQ(place.pool->backed_rows(0), 0);
  ASSERT_TRUE(place.pool->back_rows(0, 1, 100));
  EXPECT_EQ(place.pool->backed_rows(0), 100);
  const std::uint64_t before = place.pool->backed_bytes();
  EXPECT_GE(before, 100u * (128 + 12 + 4));
  EXPECT_LT(before, place.layout.buffer_bytes() / 2);
  ASSERT_TRUE(place.pool->back_rows(0, 1, 50));
  EXPECT_EQ(place.pool->backed_rows(0), 100) << "backed memory stays";
  EXPECT_EQ(place.pool->backed_bytes(), before);
  ASSERT_TRUE(place.pool->back_rows(0, 1, place.layout.max_rows()));
  EXPECT_GT(place.pool->backed_bytes(), before);
  EXPECT_LE(place.pool->backed_bytes(), place.layout.buffer_bytes());
  EXPECT_EQ(place.pool->backed_rows(1), 0) << "of another buffer";
  place.pool->data(0)[place.layout.max_rows() * 128 - 1] = std::byte{1};  // the memory is mapped
}

}  // namespace
}  // namespace ferry::internal
