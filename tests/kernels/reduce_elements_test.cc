// reduce_elements on every SIMD target against the oracle of Collectives, bit for bit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collectives/oracle.h"
#include "kernel_fixtures.h"
#include "kernels/reduce_elements.h"

namespace ferry::internal::testing {
namespace {

constexpr std::int64_t kElementCounts[] = {0,  1,  2,  7,   8,   15,  16,  17,
                                           31, 33, 64, 100, 511, 513, 1100};
constexpr int kNumRanks[] = {1, 2, 3, 8, 70};

// Rows and result at odd addresses, the result in the place of one of the rows or elsewhere.
void expect_reduced(const std::vector<test::Bytes>& ranks, DataType type, ReduceOp op,
                    bool in_place) {
  const test::Bytes expected = test::reduced(ranks, type, op);
  std::vector<GuardedRow> rows;
  std::vector<const void*> pointers;
  rows.reserve(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    rows.emplace_back(expected.size(), 3 * rank + 1, kInputGuard);
    std::copy(ranks[rank].begin(), ranks[rank].end(), rows.back().data());
    pointers.push_back(rows.back().data());
  }
  GuardedRow apart(expected.size(), 5, kOutputGuard);
  GuardedRow& out = in_place ? rows.back() : apart;
  reduce_elements({.rows = pointers.data(),
                   .num_rows = static_cast<int>(ranks.size()),
                   .type = type,
                   .op = op,
                   .out = out.data(),
                   .count = static_cast<std::int64_t>(expected.size() / element_bytes(type))});
  EXPECT_EQ(test::Bytes(out.data(), out.data() + expected.size()), expected);
  EXPECT_TRUE(out.guards_intact());
}

TEST(ReduceElements, EqualsTheOracleOnEveryTarget) {
  for_each_target([] {
    for (const DataType type : test::kEveryType) {
      for (int op = 0; op <= static_cast<int>(ReduceOp::kBxor); ++op) {
        if (!can_reduce(type, static_cast<ReduceOp>(op))) continue;
        for (const int num_rows : kNumRanks) {
          for (const std::int64_t count : kElementCounts) {
            SCOPED_TRACE(std::string(data_type_name(type)) + " " +
                         reduce_op_name(static_cast<ReduceOp>(op)) + ", " +
                         std::to_string(num_rows) + " rows of " + std::to_string(count));
            std::vector<test::Bytes> ranks;
            for (int rank = 0; rank < num_rows; ++rank)
              ranks.push_back(test::elements_of(kSeed, rank, count, type));
            expect_reduced(ranks, type, static_cast<ReduceOp>(op), count % 2 == 1);
          }
        }
      }
    }
  });
}

TEST(ReduceElements, AnOperationThatATypeDoesNotHaveIsRefused) {
  EXPECT_FALSE(can_reduce(DataType::kFp8E4m3, ReduceOp::kSum));
  EXPECT_FALSE(can_reduce(DataType::kFp64, ReduceOp::kBor));
  EXPECT_FALSE(can_reduce(DataType::kInt32, ReduceOp::kAvg));
  EXPECT_TRUE(can_reduce(DataType::kBytes, ReduceOp::kBxor));
}

}  // namespace
}  // namespace ferry::internal::testing
