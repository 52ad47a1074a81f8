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

// Returns all zeros if there are no values.
Quantiles quantiles(std::vector<double> values);

// An interval of CLOCK_MONOTONIC nanoseconds. All processes of a host share this clock.
struct Interval {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// The time from the first begin to the last end over the ranks, in microseconds, for each of
// `count` operations. `intervals` is [ranks, count].
std::vector<double> spans_us(const Interval* intervals, std::size_t ranks, std::size_t count);

}  // namespace ferry::bench
