// WorkerPool: the threads that copy and sum rows for one rank; the caller is one of them. A call of
// run() is a fork and a join. An exchange shares its pool with its ways, which may outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "topology/numa.h"

namespace ferry::internal {

class WorkerPool {
 public:
  // `nodes`: the processors of each NUMA node (cpus_by_node). The threads run on the node on which
  // the caller of run() is. If `nodes` is empty, or the caller is on none of them, the threads keep
  // their processors. Throws Error(kSystem) when a thread is refused.
  explicit WorkerPool(int workers, std::vector<CpuList> nodes = {});
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int size() const noexcept { return workers_; }
  // The number of shares of `count` items: one for each worker, or 1 if there are fewer items than
  // workers. Shares differ by at most one item.
  int num_shares(std::int64_t count) const noexcept { return count < workers_ ? 1 : workers_; }
  std::pair<std::int64_t, std::int64_t> share(std::int64_t count, int index) const noexcept {
    const int shares = num_shares(count);
    return {count * index / shares, count * (index + 1) / shares};
  }

  // Calls part(begin, end) on every worker for its share of [0, count), and returns when all are
  // done. If there is one share, the calling thread does it alone. Otherwise waits while another
  // thread is in run(). Throws an exception of `part` when all are done.
  template <typename Function>
  void run(std::int64_t count, const Function& part) {
    if (num_shares(count) == 1) return part(std::int64_t{0}, count);
    const std::lock_guard lock(running_);
    fork(count, part);
  }
  // The same for a thread that holds the lock of the group. If another thread is in run(), this
  // thread does all the work itself, since the other one may wait for that lock.
  template <typename Function>
  void run_locked(std::int64_t count, const Function& part) {
    if (num_shares(count) == 1) return part(std::int64_t{0}, count);
    const std::unique_lock lock(running_, std::try_to_lock);
    lock ? fork(count, part) : part(std::int64_t{0}, count);
  }

 private:
  using Call = void (*)(const void* part, std::int64_t begin, std::int64_t end);

  template <typename Function>
  void fork(std::int64_t count, const Function& part) {
    fork(count, &part, [](const void* self, std::int64_t begin, std::int64_t end) {
      (*static_cast<const Function*>(self))(begin, end);
    });
  }
  void fork(std::int64_t count, const void* part, Call call);
  void work(int worker);
  void call_share(int worker) noexcept;
  int my_node() const noexcept;
  void end() noexcept;

  int workers_;
  const std::vector<CpuList> nodes_;
  std::mutex running_;
  std::int64_t count_ = 0;
  const void* part_ = nullptr;
  Call call_ = nullptr;
  std::mutex failing_;          // guards failure_ while the workers run
  std::exception_ptr failure_;  // an exception of a worker in this run
  int node_ = -1;               // index in nodes_ of the caller's node; -1: none
  std::atomic<std::uint32_t> round_{
      0};  // the caller raises it (release) after the above; workers acquire
  std::atomic<std::uint32_t> busy_{
      0};  // workers lower it (release) after their part; the caller acquires
  std::atomic<bool> stop_{false};  // set (release) before the last round_; workers acquire
  std::vector<std::thread> threads_;
};

}  // namespace ferry::internal
