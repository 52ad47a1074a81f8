#include "exchange/workers/worker_pool.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <system_error>

#include "ferry/status.h"

namespace ferry::internal {

WorkerPool::WorkerPool(int workers, std::vector<CpuList> nodes)
    : workers_(workers), nodes_(std::move(nodes)) {
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
  node_ = my_node();
  busy_.store(workers_ - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);  // partner: work()
  round_.notify_all();
  call_share(0);
  for (std::uint32_t busy;
       (busy = busy_.load(std::memory_order_acquire)) != 0;) {  // partner: work()
    busy_.wait(busy, std::memory_order_acquire);
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void WorkerPool::call_share(int worker) noexcept {
  const auto [begin, end] = share(count_, worker);
  try {
    call_(part_, begin, end);
  } catch (...) {
    const std::lock_guard lock(failing_);
    failure_ = std::current_exception();
  }
}

// The index in nodes_ of the node on which the calling thread runs now; -1: none of them.
int WorkerPool::my_node() const noexcept {
  if (nodes_.empty()) return -1;
  const int cpu = sched_getcpu();
  const auto here = std::ranges::find_if(
      nodes_, [cpu](const CpuList& cpus) { return std::ranges::binary_search(cpus, cpu); });
  return here == nodes_.end() ? -1 : static_cast<int>(here - nodes_.begin());
}

// The caller may move from node to node, and the workers follow it.
void WorkerPool::work(int worker) {
  int node = -1;
  for (std::uint32_t seen = 0;; ++seen) {
    round_.wait(seen, std::memory_order_acquire);  // partner: fork(), end()
    if (stop_.load(std::memory_order_acquire)) return;
    if (node_ >= 0 && node_ != node) run_on(nodes_[node = node_]);
    call_share(worker);
    if (busy_.fetch_sub(1, std::memory_order_release) == 1) busy_.notify_one();
  }
}

}  // namespace ferry::internal
