// WorkerPool: every item is worked on once, by all workers, and run() returns when all are done.
#include "exchange/workers/worker_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <mutex>
#include <new>
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

// The caller gets the exception when all workers have ended, and the pool can be used again.
TEST(WorkerPool, AnExceptionInAWorkerReachesTheCaller) {
  WorkerPool pool(3);
  for (const std::int64_t bad : {0, 4, 8}) {  // of the caller and of each thread
    std::atomic<int> ended = 0;
    const auto part = [&](std::int64_t begin, std::int64_t end) {
      if (begin <= bad && bad < end) throw std::bad_alloc();
      ended.fetch_add(1, std::memory_order_relaxed);
    };
    EXPECT_THROW(pool.run(9, part), std::bad_alloc) << bad;
    EXPECT_EQ(ended.load(std::memory_order_relaxed), 2) << bad;
  }
  std::atomic<int> sum = 0;
  pool.run(9, [&](std::int64_t begin, std::int64_t end) {
    sum.fetch_add(static_cast<int>(end - begin), std::memory_order_relaxed);
  });
  EXPECT_EQ(sum.load(std::memory_order_relaxed), 9);
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

TEST(WorkerPool, SharesAreThoseOfARun) {
  WorkerPool pool(3);
  EXPECT_EQ(pool.num_shares(2), 1);
  EXPECT_EQ(pool.share(2, 0), (std::pair<std::int64_t, std::int64_t>{0, 2}));
  EXPECT_EQ(pool.num_shares(7), 3);
  EXPECT_EQ(pool.share(7, 0).first, 0);
  for (const int i : {0, 1}) EXPECT_EQ(pool.share(7, i).second, pool.share(7, i + 1).first);
  EXPECT_EQ(pool.share(7, 2).second, 7);
}

// Each of two threads has all items done, by the workers or alone.
TEST(WorkerPool, TwoThreadsMayRunAtOnce) {
  WorkerPool pool(3);
  std::vector<int> own(30, 0), locked(30, 0);
  std::thread other([&] {
    for (int round = 0; round < 500; ++round)
      pool.run_locked(30, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++locked[i];
      });
  });
  for (int round = 0; round < 500; ++round)
    pool.run(30, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) ++own[i];
    });
  other.join();
  EXPECT_EQ(own, std::vector<int>(30, 500));
  EXPECT_EQ(locked, std::vector<int>(30, 500));
}

// Workers that run for another thread may wait for a lock that this thread holds.
TEST(WorkerPool, ARunWithALockHeldWaitsForNoOther) {
  WorkerPool pool(2);
  std::mutex mutex;
  std::unique_lock held(mutex);
  std::atomic<int> waiting{0};
  std::thread other([&] {
    pool.run(2, [&](std::int64_t, std::int64_t) {
      waiting.fetch_add(1, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
    });
  });
  while (waiting.load(std::memory_order_relaxed) < 2) std::this_thread::yield();
  std::vector<std::thread::id> threads;
  pool.run_locked(2, [&](std::int64_t begin, std::int64_t end) {
    threads.push_back(std::this_thread::get_id());
    EXPECT_EQ(end - begin, 2);
  });
  EXPECT_EQ(threads, std::vector{std::this_thread::get_id()});
  held.unlock();
  other.join();
}

// Where the workers of a pool may run, but for the caller.
std::set<CpuList> places_of(WorkerPool& pool) {
  std::mutex mutex;
  std::set<CpuList> places;
  const auto caller = std::this_thread::get_id();
  pool.run(pool.size(), [&](std::int64_t, std::int64_t) {
    const std::lock_guard lock(mutex);
    if (std::this_thread::get_id() != caller) places.insert(allowed_cpus());
  });
  return places;
}

TEST(WorkerPool, WorkersFollowTheCallerFromNodeToNode) {
  const CpuList mine = allowed_cpus();
  if (mine.size() < 2) GTEST_SKIP() << "one processor";
  const CpuList nodes[] = {{mine[0]}, {mine.begin() + 1, mine.end()}};
  WorkerPool pool(3, {nodes[0], nodes[1]});
  for (const int node : {0, 1, 1, 0}) {
    run_on({nodes[node].back()});
    EXPECT_EQ(places_of(pool), std::set{nodes[node]});
  }
  run_on(mine);
  EXPECT_EQ(allowed_cpus(), mine);  // the caller is left where it is
}

TEST(WorkerPool, WithoutNodesWorkersRunWhereTheyMay) {
  const CpuList mine = allowed_cpus();
  WorkerPool pool(3);
  EXPECT_EQ(places_of(pool), std::set{mine});
  WorkerPool elsewhere(3, {{CPU_SETSIZE - 2}, {CPU_SETSIZE - 1}});  // the caller is on neither
  EXPECT_EQ(places_of(elsewhere), std::set{mine});
}

TEST(WorkerPool, EndsWithoutARun) { const WorkerPool pool(3); }

}  // namespace
}  // namespace ferry::internal
