#include "exchange/worker_pool.h"

#include <fmt/format.h>

#include <system_error>

#include "ferry/status.h"

namespace ferry::internal {

WorkerPool::WorkerPool(int workers) : workers_(workers) {
  try {
    for (int worker = 1; worker < workers; ++worker)
      threads_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error& refused) {
    end();
    throw Error(Code::kSystem, fmt::format("workers is {}: the thread of worker {} was refused: {}",
                                           workers, threads_.size() + 1, refused.what()));
  }
}

WorkerPool::~WorkerPool() { end(); }

void WorkerPool::end() noexcept {
  stop_.store(true, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::fork(std::int64_t count, const void* part, Call call) {
  count_ = count;
  part_ = part;
  call_ = call;
  busy_.store(workers_ - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);  // partner: work()
  round_.notify_all();
  const auto [begin, end] = share(0);
  call(part, begin, end);
  for (std::uint32_t busy;
       (busy = busy_.load(std::memory_order_acquire)) != 0;) {  // partner: work()
    busy_.wait(busy, std::memory_order_acquire);
  }
}

void WorkerPool::work(int worker) {
  for (std::uint32_t seen = 0;; ++seen) {
    round_.wait(seen, std::memory_order_acquire);  // partner: run(), ~WorkerPool
    if (stop_.load(std::memory_order_acquire)) return;
    const auto [begin, end] = share(worker);
    call_(part_, begin, end);
    if (busy_.fetch_sub(1, std::memory_order_release) == 1) busy_.notify_one();
  }
}

}  // namespace ferry::internal
