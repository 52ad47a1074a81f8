#include "base/waiting.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace ferry::internal {

std::int64_t now_ns() noexcept {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

std::int64_t running_ns() noexcept {
  // Relaxed order suffices, because these numbers publish no other data. If a thread was stopped
  // between the exchange and the addition, it adds no time that another thread has already added.
  static std::atomic<std::int64_t> looked_ns{0}, ran_ns{0};
  const std::int64_t now = now_ns();
  std::int64_t seen = looked_ns.load(std::memory_order_relaxed);
  while (seen < now && !looked_ns.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
  const std::int64_t since = now - seen;
  const std::int64_t ran = std::clamp<std::int64_t>(since, 0, kLongestLookNs);
  return ran_ns.fetch_add(ran, std::memory_order_relaxed) + ran;
}

void pause_processor() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void yield_processor() noexcept { sched_yield(); }

int current_processor() noexcept { return sched_getcpu(); }

void sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t value,
              std::int64_t wait_ns) noexcept {
  const timespec timeout{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void wake(const std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

}  // namespace ferry::internal
