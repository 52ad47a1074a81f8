#include "exchange/crew.h"

namespace ferry::internal {

Crew::Crew(int workers) : workers_(workers) {
  for (int worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { work(worker); });
}

Crew::~Crew() {
  stop_.store(true, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Crew::run(std::int64_t count, const std::function<void(std::int64_t, std::int64_t)>& part) {
  if (workers_ == 1 || count < workers_) {
    part(0, count);
    return;
  }
  count_ = count;
  part_ = &part;
  busy_.store(workers_ - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);  // partner: work()
  round_.notify_all();
  const auto [begin, end] = share(0);
  part(begin, end);
  for (std::uint32_t busy; (busy = busy_.load(std::memory_order_acquire)) != 0;) {  // partner: work()
    busy_.wait(busy, std::memory_order_acquire);
  }
}

void Crew::work(int worker) {
  for (std::uint32_t seen = 0;; ++seen) {
    round_.wait(seen, std::memory_order_acquire);  // partner: run(), ~Crew
    if (stop_.load(std::memory_order_acquire)) return;
    const auto [begin, end] = share(worker);
    (*part_)(begin, end);
    if (busy_.fetch_sub(1, std::memory_order_release) == 1) busy_.notify_one();
  }
}

}  // namespace ferry::internal
