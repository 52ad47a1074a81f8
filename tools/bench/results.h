// The results of the ranks: arrays in memory that is shared with the process that started them.
// Only the rank itself writes its elements, which are read after all ranks have ended. Ranks that a
// launcher started exchange them instead. rank_bench.cc fills them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ferry/exchange.h"
#include "ferry/group.h"
#include "tools/bench/memory.h"
#include "tools/bench/plan.h"
#include "tools/bench/statistics.h"
#include "tools/bench/stores.h"

namespace ferry::bench {

struct RankSummary {
  static constexpr int kMostLevels = 8;

  std::uint64_t sent_bytes = 0;      // row bytes written by one dispatch
  std::uint64_t pulled_bytes = 0;    // row bytes read by one combine
  std::uint64_t link_row_bytes = 0;  // rows and scales sent to other nodes by a pair
  std::uint64_t link_bytes = 0;      // all bytes
  // The same to other groups of each level, from the outermost to the nodes.
  std::array<CrossedBytes, kMostLevels> crossed = {};
  std::uint64_t window_bytes = 0;  // committed at the end
  std::uint64_t compared = 0;      // elements compared with the oracle
  std::uint64_t wrong = 0;         // of these, different
  StoreCounts stores;              // of the timed pairs
  int node = 0;
  Algorithm algorithm = Algorithm::kAuto;  // that was used, and why
  std::array<char, 200> reason = {};
};

struct TracedSpan {
  std::array<char, 24> phase = {};
  Interval time;
};

struct TracedOperation {
  std::uint32_t num_spans = 0;
  std::array<TracedSpan, 36> spans = {};  // of a combine in 17 passes (early_tokens.cc)
};

struct Results {
  static constexpr std::size_t kTracedExchanges = 20;

  Results(std::size_t ranks, std::size_t iterations, std::size_t batches, bool trace)
      : num_ranks(ranks),
        num_iterations(iterations),
        num_batches(batches),
        dispatch(ranks * iterations),
        combine(ranks * iterations),
        pairs(ranks * batches),
        summary(ranks),
        traced(trace ? ranks * kTracedExchanges * 2 : 0),
        traced_wait_ns(trace ? ranks * kTracedExchanges * 2 * ranks : 0) {}

  std::size_t num_ranks;
  std::size_t num_iterations;
  std::size_t num_batches;
  SharedArray<Interval> dispatch;            // [R, iterations]
  SharedArray<Interval> combine;             // [R, iterations]
  SharedArray<Interval> pairs;               // [R, batches]
  SharedArray<RankSummary> summary;          // [R]
  SharedArray<TracedOperation> traced;       // [R, kTracedExchanges, 2]: dispatch, combine
  SharedArray<std::int64_t> traced_wait_ns;  // [R, kTracedExchanges, 2, R]

  // Collective: gives every rank the results of all, where they see no common memory. Clocks of
  // hosts differ, so an interval is then from 0 to its length. Throws ferry::Error.
  void gather(Group& group);
};

// Exchanges of one batch of the free-running loop.
std::size_t pairs_per_batch(const Plan& plan, const Results& results) noexcept;

// Rank group.rank() of `plan`: sets up, warms up, measures, checks, and fills its part of
// `results`. Throws ferry::Error.
void run_rank(const Plan& plan, Results& results, Group group);

// Chrome trace JSON (chrome://tracing, Perfetto): a track per rank, with a span per operation,
// which holds the wait for each source, and inside it a span per phase. Times start at the first
// operation. What ranks sent to other nodes is under otherData.
std::string trace_json(const Results& results);
// Throws std::runtime_error when the file cannot be written.
void write_trace(const std::string& file, const std::string& trace);

}  // namespace ferry::bench
