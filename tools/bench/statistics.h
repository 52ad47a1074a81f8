// Statistics of measured times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferry::bench {

struct Quantiles {
  double min = 0;
  double median = 0;
  double p99 = 0;
};

// All zero without values.
Quantiles quantiles(std::vector<double> values);

// CLOCK_MONOTONIC nanoseconds, common to all processes of a host.
struct Interval {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// For intervals [ranks, count]: last end minus first begin over the ranks, in microseconds, for
// each of `count` operations.
std::vector<double> spans_us(const Interval* intervals, std::size_t ranks, std::size_t count);

}  // namespace ferry::bench
