// ReturnPool: objects that return are given out again, whichever thread returns them.
#include "base/return_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace ferry::internal {
namespace {

using Pool = ReturnPool<std::vector<int>>;

std::shared_ptr<std::vector<int>> take(Pool& pool) {
  return pool.take([] { return std::make_unique<std::vector<int>>(); });
}

TEST(ReturnPool, GivesBackWhatReturned) {
  const auto pool = std::make_shared<Pool>();
  auto first = take(*pool), second = take(*pool);
  first->push_back(1), second->push_back(2);
  const void* const was = first.get();
  first.reset();
  const auto again = take(*pool);
  EXPECT_EQ(again.get(), was);
  EXPECT_EQ(*again, std::vector<int>{1});
  EXPECT_EQ(*second, std::vector<int>{2});
}

TEST(ReturnPool, ObjectsReturnAfterTheirOwnerOnAnyThread) {
  auto pool = std::make_shared<Pool>();
  auto last = take(*pool);
  std::jthread other([last = std::move(last)]() mutable { last.reset(); });
  pool.reset();
}

TEST(ReturnPool, NewObjectsAreFree) {
  const auto pool = std::make_shared<Pool>();
  pool->put_new(std::make_unique<std::vector<int>>(3));
  EXPECT_EQ(take(*pool)->size(), 3U);
}

}  // namespace
}  // namespace ferry::internal
