// WorkerPool: every item is worked on once, by all workers, and run() returns when all are done.
#include "exchange/worker_pool.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace ferry::internal {
namespace {

TEST(WorkerPool, EveryItemIsWorkedOnOnce) {
  for (const int workers : {1, 2, 3, 5}) {
    WorkerPool pool(workers);
    for (std::int64_t count = 0; count < 40; ++count) {
      std::vector<int> times(count);  // shares do not overlap: no two threads write one element
      pool.run(count, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++times[i];
      });
      EXPECT_EQ(times, std::vector<int>(count, 1)) << workers << " workers, " << count << " items";
    }
  }
}

TEST(WorkerPool, AllWorkersTakePartAndTheCallerIsOne) {
  WorkerPool pool(4);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<std::int64_t> sizes;
  pool.run(10, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    sizes.push_back(end - begin);
  });
  EXPECT_EQ(threads.size(), 4u);
  EXPECT_TRUE(threads.contains(std::this_thread::get_id()));
  for (const std::int64_t size : sizes) EXPECT_TRUE(size == 2 || size == 3) << size;
}

TEST(WorkerPool, FewerItemsThanWorkersStayWithTheCaller) {
  WorkerPool pool(3);
  int calls = 0;
  pool.run(2, [&](std::int64_t begin, std::int64_t end) {
    ++calls;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 2);
    EXPECT_EQ(calls, 1);
  });
  EXPECT_EQ(calls, 1);
}

TEST(WorkerPool, WhatWorkersWroteIsSeenAfterEachOfManyRuns) {
  WorkerPool pool(3);
  std::vector<std::int64_t> values(30, 0);
  for (std::int64_t round = 1; round <= 200; ++round) {
    pool.run(30, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) values[i] += i;
    });
    for (std::int64_t i = 0; i < 30; ++i) ASSERT_EQ(values[i], round * i);
  }
}

TEST(WorkerPool, EndsWithoutARun) { const WorkerPool pool(3); }

}  // namespace
}  // namespace ferry::internal
