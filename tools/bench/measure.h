// Measures one plan: first the limit, then the ranks, then the limit again. Calls limit.h and
// ranks.h.
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

// The bytes that cross a level of the topology in one pair.
struct LevelBytes {
  // A level down to "host", such as "rack": the bytes between its groups. "rank": the bytes that
  // the busiest rank moves inside its node.
  std::string name;
  // The bytes of rows and scales; between nodes, those that leave the busiest node.
  double bytes = 0;
  double all_bytes = 0;  // bytes of headers and flags included
  double limit_us = 0;   // the time of `bytes` at the bandwidth in the topology; 0: unknown
};

// Counts of rows, summed over ranks.
struct RowCounts {
  std::int64_t all = 0, remote = 0;
  double imbalance = 0;
  // For the report: [R, R] rows from rank to rank, and [R, L] rows of each rank's experts.
  std::vector<std::vector<std::int64_t>> between, of_experts;
  std::vector<StoreCounts> stores;  // [R]: how each rank wrote its rows in the timed pairs
};

// The measurements of one exchange; bytes are summed over ranks.
struct Measurement {
  std::int64_t tokens = 0;  // tokens of the rank with the most
  int iterations = 0;
  // From a barrier: the last end over ranks minus the first start.
  Quantiles dispatch_us;
  Quantiles combine_us;  // measured in the same way
  Quantiles pair_us;     // free-running: wall time per pair, one value per batch
  LimitTimes limit;
  RowCounts rows;
  std::uint64_t dispatch_bytes = 0;
  std::uint64_t combine_bytes = 0;
  std::uint64_t window_bytes = 0;
  std::vector<LevelBytes> levels;  // outermost first
  Algorithm algorithm = Algorithm::kAuto;
  std::string algorithm_reason;
  std::uint64_t compared = 0, wrong = 0;
  std::string trace;  // the JSON of a trace file, if the options request a trace

  double limit_ratio() const noexcept {
    return limit.pair_us > 0 ? pair_us.median / limit.pair_us : 0;
  }
};

// Shows the stage of the measurement. An empty text ends the display.
using Progress = std::function<void(const char*)>;

// Sets the plan's number of iterations and measures. Writes the trace file if the options name one.
Measurement measure(Plan& plan, const Progress& progress);

// The output of a bench: a table for people (table.cc) and one JSON object for programs (json.cc).
// The header of the table has machine, shape and units; a line follows for each measurement, and
// the footer explains the columns.
std::string table_header(const Options& options);
std::string table_line(const Options& options, const Measurement& measurement);
// Describes the gain of --rebalance, from its three measurements.
std::string rebalance_footer(const Options& options, const std::vector<Measurement>& measurements);
std::string table_footer(const Options& options, const std::vector<Measurement>& measurements);

// Writes the HTML page of --report. Throws std::runtime_error if it cannot be written.
void write_report(const Options& options, const std::vector<Measurement>& measurements);

// Returns one line of JSON. With a sweep the measurements are under "points"; otherwise they are
// fields of the object itself.
std::string to_json(const Options& options, const std::vector<Measurement>& measurements);

}  // namespace ferry::bench
