// Measures one plan: the limit, the ranks, the limit again. Called by bench.cc; calls limit.h and
// ranks.h.
#pragma once

#include <cstdint>
#include <functional>

#include "bench/limit.h"
#include "bench/plan.h"
#include "bench/statistics.h"

namespace ferry::bench {

// Of one exchange; bytes and rows summed over ranks.
struct Measurement {
  std::int64_t tokens = 0;  // of the fullest rank
  int iterations = 0;
  Quantiles dispatch_us;  // barrier before, last end minus first start over ranks
  Quantiles combine_us;   // likewise
  Quantiles pair_us;      // free-running, wall time over exchanges, by batches
  LimitTimes limit;
  std::int64_t rows = 0;
  std::int64_t remote_rows = 0;
  std::uint64_t dispatch_bytes = 0;
  std::uint64_t combine_bytes = 0;
  std::uint64_t window_bytes = 0;
  double imbalance = 0;
  std::uint64_t compared = 0;
  std::uint64_t wrong = 0;

  double limit_ratio() const noexcept {
    return limit.pair_us > 0 ? pair_us.median / limit.pair_us : 0;
  }
};

// Says what is being done; empty text: done.
using Progress = std::function<void(const char*)>;

// Resolves the plan's number of iterations. Writes the trace file when the options name one.
Measurement measure(Plan& plan, const Progress& progress);

}  // namespace ferry::bench
