// WorkerPool: the threads that move rows for one rank, the caller included. A call of run() is a
// fork and a join. Owned by ExchangeState; used by send_rows.cc, publish_outputs.cc and combine.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace ferry::internal {

class WorkerPool {
 public:
  // Throws Error(kSystem) when a thread is refused.
  explicit WorkerPool(int workers);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Calls part(begin, end) on every worker for its share of [0, count), and returns when all are
  // done.
  template <typename Function>
  void run(std::int64_t count, const Function& part) {
    if (workers_ == 1 || count < workers_) {
      part(std::int64_t{0}, count);
    } else {
      fork(count, &part, [](const void* self, std::int64_t begin, std::int64_t end) {
        (*static_cast<const Function*>(self))(begin, end);
      });
    }
  }

 private:
  using Call = void (*)(const void* part, std::int64_t begin, std::int64_t end);

  void end() noexcept;
  void fork(std::int64_t count, const void* part, Call call);
  void work(int worker);
  // Shares differ by at most one item.
  std::pair<std::int64_t, std::int64_t> share(int worker) const noexcept {
    return {count_ * worker / workers_, count_ * (worker + 1) / workers_};
  }

  int workers_;
  std::int64_t count_ = 0;
  const void* part_ = nullptr;
  Call call_ = nullptr;
  std::atomic<std::uint32_t> round_{
      0};  // the caller raises it (release) after the above; workers acquire
  std::atomic<std::uint32_t> busy_{
      0};  // workers lower it (release) after their part; the caller acquires
  std::atomic<bool> stop_{false};  // set (release) before the last round_; workers acquire
  std::vector<std::thread> threads_;
};

}  // namespace ferry::internal
