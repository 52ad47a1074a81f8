// copy_row and copy_row_to_many: every byte of the row, and no other, on every SIMD target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernel_fixtures.h"
#include "kernels/kernels.h"

namespace ferry::internal::testing {
namespace {

constexpr std::size_t kSizes[] = {0,   1,   2,   31,  63,   64,   65,   127,  128,  129,
                                  511, 512, 513, 576, 1000, 1023, 4096, 4097, 14336};
constexpr std::size_t kOffsets[] = {0, 1, 2, 16, 33, 62, 63};
constexpr Stores kStores[] = {Stores::kCached, Stores::kStreaming};

void check_copy(std::size_t bytes, std::size_t offset, Stores stores, std::mt19937& random) {
  GuardedRow from(bytes, random(), kInputGuard), to(bytes, offset, kOutputGuard);
  from.fill_random(random);
  copy_row(to.data(), from.data(), bytes, stores);
  stores_fence();
  ASSERT_EQ(to.copy(), from.copy()) << bytes << " bytes at offset " << offset;
  ASSERT_TRUE(to.guards_intact()) << bytes << " bytes at offset " << offset;
}

TEST(CopyRow, CopiesEveryByteAndNoOtherAtAnyAlignment) {
  for_each_target_and_order([] {
    std::mt19937 random(kSeed);
    for (const std::size_t bytes : kSizes) {
      for (const std::size_t offset : kOffsets) {
        for (const Stores stores : kStores) check_copy(bytes, offset, stores, random);
      }
    }
  });
}

void check_copy_to_many(std::size_t bytes, int num_dsts, Stores stores, std::mt19937& random) {
  GuardedRow from(bytes, random(), kInputGuard);
  from.fill_random(random);
  std::vector<GuardedRow> rows;
  rows.reserve(static_cast<std::size_t>(num_dsts));
  for (int k = 0; k < num_dsts; ++k) rows.emplace_back(bytes, random(), kOutputGuard);
  std::vector<void*> dsts;
  dsts.reserve(rows.size());
  for (GuardedRow& row : rows) dsts.push_back(row.data());
  copy_row_to_many(dsts.data(), num_dsts, from.data(), bytes, stores);
  stores_fence();
  for (const GuardedRow& row : rows) {
    ASSERT_EQ(row.copy(), from.copy()) << bytes << " bytes to " << num_dsts;
    ASSERT_TRUE(row.guards_intact()) << bytes << " bytes to " << num_dsts;
  }
}

TEST(CopyRowToMany, DestinationsOfDifferentAlignmentsAllGetTheRow) {
  for_each_target_and_order([] {
    std::mt19937 random(kSeed);
    for (const std::size_t bytes : kSizes) {
      for (const int num_dsts : {0, 1, 2, 3, 8, 33}) {
        for (const Stores stores : kStores) check_copy_to_many(bytes, num_dsts, stores, random);
      }
    }
  });
}

TEST(CopyRowToMany, RowsLargerThanOneCachedPart) {
  for_each_target_and_order([] {
    std::mt19937 random(kSeed);
    for (const Stores stores : kStores) check_copy_to_many(65536 * 2 + 77, 3, stores, random);
  });
}

TEST(CopyRow, TouchesNoPageOutsideTheRow) {
  for_each_target_and_order([] {
    FencedPages from(4096), to(4096);
    for (const std::size_t bytes : {1, 63, 64, 65, 200, 577}) {
      for (const Stores stores : kStores) {
        copy_row(to.first(), from.first(), bytes, stores);
        copy_row(to.last(bytes), from.last(bytes), bytes, stores);
        copy_row(to.first(), from.last(bytes), bytes, stores);
      }
    }
  });
}

TEST(PrefetchRow, IsHarmlessForAnyLength) {
  const char byte = 0;
  for (const std::size_t bytes : kSizes) prefetch_row(&byte, bytes);
}

TEST(SimdTargets, UnknownNamesAreRefusedAndScalarIsThere) {
  int num_targets = 0;
  const char* const* names = simd_targets(&num_targets);
  ASSERT_GE(num_targets, 1);
  const bool scalar = std::any_of(names, names + num_targets, [](const char* name) {
    return std::strcmp(name, "SCALAR") == 0 || std::strcmp(name, "EMU128") == 0;
  });
  EXPECT_TRUE(scalar);
  EXPECT_FALSE(force_simd_target("no such target"));
  EXPECT_TRUE(force_simd_target(""));
}

}  // namespace
}  // namespace ferry::internal::testing
