// The measurements of `ferry doctor`. Called by doctor.cc; calls Segment, last_level_cache_bytes
// and copy_row.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "bench/cores.h"
#include "bench/memory.h"
#include "doctor_findings.h"
#include "kernels/kernels.h"
#include "memory/available.h"
#include "memory/segment.h"
#include "topology/caches.h"

namespace ferry::tools {
namespace {

constexpr std::size_t kPage = 4096;

template <typename Body>
double elapsed_ns(const Body& body) {
  const std::int64_t begin = internal::now_ns();
  body();
  return static_cast<double>(internal::now_ns() - begin);
}

double measure_touch() {
  constexpr std::size_t kBytes = 4 * internal::Segment::kHugePage;
  const auto segment = internal::Segment::create(kBytes);
  const double ns = elapsed_ns([&] {
    for (std::size_t at = 0; at < kBytes; at += kPage) segment->data()[at] = std::byte{1};
  });
  return ns / kBytes * kPage;
}

double measure_commit() {
  constexpr std::size_t kBytes = 32 * internal::Segment::kHugePage;
  const auto segment = internal::Segment::create(kBytes);
  bool ok = false;
  const double ns = elapsed_ns([&] { ok = segment->commit(0, kBytes); });
  return ok ? ns / kBytes * kPage : 0;
}

// Two threads wait for each other in turn. On one processor they must yield, as ferry's ranks do
// there.
struct Rally {
  alignas(64) std::atomic<std::int64_t> ball{0};  // even: the first thread's turn; negative: over

  // Acquire pairs with the release in play(): nothing but the turn itself is passed.
  bool wait_for(std::int64_t value, bool spin) {
    for (;;) {
      const std::int64_t seen = ball.load(std::memory_order_acquire);
      if (seen == value || seen < 0) return seen == value;
      if (!spin) sched_yield();
    }
  }
  void play(std::int64_t value) { ball.store(value, std::memory_order_release); }
};

double measure_hop(const std::vector<int>& cpus) {
  constexpr auto kSpan = std::chrono::milliseconds(20);
  Rally rally;
  const bool spin = cpus.size() > 1;
  std::thread second([&] {
    bench::pin_to(cpus, 1, 1);
    for (std::int64_t turn = 1; rally.wait_for(turn, spin); turn += 2) rally.play(turn + 1);
  });
  double best_ns = 0;
  std::thread first([&] {
    constexpr int kRounds = 16;
    bench::pin_to(cpus, 0, 1);
    std::int64_t hops = 0;
    const auto rounds = [&] {
      for (int i = 0; i < kRounds; ++i) {
        rally.play(hops + 1);
        hops += 2;
        rally.wait_for(hops, spin);
      }
    };
    rounds();  // both threads are up
    const internal::Deadline end = internal::Deadline::after(kSpan);
    best_ns = elapsed_ns(rounds);
    while (!end.passed()) best_ns = std::min(best_ns, elapsed_ns(rounds));
    best_ns /= 2 * kRounds;
    rally.play(-1);
  });
  first.join();
  second.join();
  return best_ns;
}

double measure_copy() {
  constexpr std::uint64_t kLeast = std::uint64_t{16} << 20, kMost = std::uint64_t{128} << 20;
  constexpr int kRounds = 4;
  const std::uint64_t room = internal::available_memory() / 8;
  const std::uint64_t bytes =
      std::clamp(std::min(2 * internal::last_level_cache_bytes(), room), kLeast, kMost);
  const bench::Mapping from(bytes, bench::Mapping::Kind::kPrivate),
      to(bytes, bench::Mapping::Kind::kPrivate);
  bench::touch(from.data(), bytes);
  bench::touch(to.data(), bytes);
  double best_ns = 0;
  for (int i = 0; i < kRounds; ++i) {
    const double ns = elapsed_ns([&] {
      internal::copy_row(to.data(), from.data(), bytes, internal::Stores::kStreaming);
      internal::stores_fence();
    });
    best_ns = i == 0 ? ns : std::min(best_ns, ns);
  }
  return static_cast<double>(bytes) / best_ns * 1e9;
}

}  // namespace

Speed measure_speed(const std::vector<int>& cpus) {
  return {.touch_ns = measure_touch(),
          .commit_ns = measure_commit(),
          .hop_ns = measure_hop(cpus),
          .hop_on_two_cpus = cpus.size() > 1,
          .copy_bytes_per_s = measure_copy()};
}

}  // namespace ferry::tools
