// Times two threads that wait for each other in turn; see flag_time.h.
#include "tools/bench/flag_time.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "base/clock.h"
#include "tools/bench/cores.h"

namespace ferry::bench {
namespace {

// A flag that two threads write in turn. If there is only one core, a thread yields while it waits,
// as ferry's ranks do.
struct Flag {
  // An even value means that the first thread writes next, and a negative one that the measurement
  // is over.
  alignas(64) std::atomic<std::int64_t> value{0};

  // The acquire pairs with the release in set(). Only the value itself is published.
  bool wait_for(std::int64_t wanted, bool spin) {
    for (;;) {
      const std::int64_t seen = value.load(std::memory_order_acquire);
      if (seen == wanted || seen < 0) return seen == wanted;
      if (!spin) sched_yield();
    }
  }
  void set(std::int64_t next) { value.store(next, std::memory_order_release); }
};

}  // namespace

double flag_ns(std::span<const int> cores, std::chrono::milliseconds length) {
  const bool spin = cores.size() > 1;
  const std::vector<int> used(cores.begin(), cores.end());
  Flag flag;
  std::thread second([&] {
    pin_to(used, 1, 1);
    for (std::int64_t turn = 1; flag.wait_for(turn, spin); turn += 2) flag.set(turn + 1);
  });
  double best_ns = 0;
  std::thread first([&] {
    constexpr int kRounds = 16;
    pin_to(used, 0, 1);
    std::int64_t hops = 0;
    const auto rounds_ns = [&] {
      const std::int64_t begin_ns = internal::now_ns();
      for (int i = 0; i < kRounds; ++i) {
        flag.set(hops + 1);
        hops += 2;
        flag.wait_for(hops, spin);
      }
      return static_cast<double>(internal::now_ns() - begin_ns);
    };
    rounds_ns();  // makes sure that both threads run before the measurement
    const internal::Deadline end = internal::Deadline::after(length);
    best_ns = rounds_ns();
    while (!end.passed()) best_ns = std::min(best_ns, rounds_ns());
    best_ns /= 2 * kRounds;
    flag.set(-1);
  });
  first.join();
  second.join();
  return best_ns;
}

double mean_flag_ns(const std::vector<int>& cores, std::size_t count) {
  constexpr std::chrono::milliseconds kLength{2};
  const std::size_t used = std::min(cores.size(), count);
  if (used < 2) return 0;
  double sum_ns = 0;
  for (std::size_t i = 0; i + 1 < used; ++i)
    sum_ns += flag_ns(std::span(cores).subspan(i, 2), kLength);
  return sum_ns / static_cast<double>(used - 1);
}

bool cores_moved(std::span<const double> flags_ns) noexcept {
  // Between two last-level caches a flag takes about four times as long as within one.
  constexpr double kApart = 2;
  const auto [least, most] = std::ranges::minmax_element(flags_ns);
  return least != flags_ns.end() && *most > kApart * *least;
}

}  // namespace ferry::bench
