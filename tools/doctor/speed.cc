// Measures speeds for `ferry doctor`. Calls Segment, last_level_cache_bytes and copy_row.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "kernels/kernels.h"
#include "memory/available.h"
#include "memory/segment.h"
#include "tools/bench/flag_time.h"
#include "tools/bench/memory.h"
#include "tools/doctor/findings.h"
#include "topology/caches.h"

namespace ferry::tools {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::chrono::milliseconds kFlagTime{20};

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
          .flag_ns = bench::flag_ns(cpus, kFlagTime),
          .flag_on_two_cpus = cpus.size() > 1,
          .copy_bytes_per_s = measure_copy()};
}

}  // namespace ferry::tools
