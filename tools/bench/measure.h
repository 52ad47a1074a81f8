// Measures one plan: the limit, the ranks, the limit again. Calls limit.h and ranks.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/bench/limit.h"
#include "tools/bench/plan.h"
#include "tools/bench/statistics.h"
#include "tools/bench/stores.h"

namespace ferry::bench {

// What crosses a level of the topology in one pair.
struct LevelBytes {
  std::string name;      // "host": between nodes; "rank": inside, of the busiest rank
  double bytes = 0;      // rows and scales; between nodes, out of the busiest node
  double all_bytes = 0;  // headers and flags included
  double limit_us = 0;   // bytes at the bandwidth that the topology gives; 0: not known
};

// Summed over ranks.
struct RowCounts {
  std::int64_t all = 0, remote = 0;
  double imbalance = 0;
  // For a report: [R, R] from rank to rank, and [R, L] of each rank's experts.
  std::vector<std::vector<std::int64_t>> between, of_experts;
  std::vector<StoreCounts> stores;  // [R], that wrote them in the timed pairs
};

// The measurements of one exchange; bytes are summed over ranks.
struct Measurement {
  std::int64_t tokens = 0;  // of the fullest rank
  int iterations = 0;
  Quantiles dispatch_us;  // barrier before, last end minus first start over ranks
  Quantiles combine_us;   // likewise
  Quantiles pair_us;      // free-running, wall time over exchanges, by batches
  LimitTimes limit;
  RowCounts rows;
  std::uint64_t dispatch_bytes = 0;
  std::uint64_t combine_bytes = 0;
  std::uint64_t window_bytes = 0;
  std::vector<LevelBytes> levels;  // from the outside in
  Algorithm algorithm = Algorithm::kAuto;
  std::string algorithm_reason;
  std::uint64_t compared = 0, wrong = 0;
  std::string trace;  // the JSON of a trace file, where the options trace

  double limit_ratio() const noexcept {
    return limit.pair_us > 0 ? pair_us.median / limit.pair_us : 0;
  }
};

// Shows what is being done; empty text: done.
using Progress = std::function<void(const char*)>;

// Resolves the plan's number of iterations. Writes the trace file when the options name one.
Measurement measure(Plan& plan, const Progress& progress);

// What a bench prints: a table for people (table.cc), one JSON object for programs (json.cc). The
// header names machine, shape and units; then comes a line per measurement; then what the columns
// mean.
std::string table_header(const Options& options);
std::string table_line(const Options& options, const Measurement& measurement);
// The gain of --rebalance, from its three measurements.
std::string rebalance_footer(const Options& options, const std::vector<Measurement>& measurements);
std::string table_footer(const Options& options, const std::vector<Measurement>& measurements);

// The HTML page of --report. Throws std::runtime_error when it cannot be written.
void write_report(const Options& options, const std::vector<Measurement>& measurements);

// One line. With a sweep, the measurements are under "points"; otherwise they are fields of the
// object itself.
std::string to_json(const Options& options, const std::vector<Measurement>& measurements);

}  // namespace ferry::bench
