// The results of the ranks, in arrays that each rank shares with the process that started it. Only
// a rank itself writes its elements, and they are read after all ranks have ended. Ranks that a
// launcher started exchange their results instead.
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
  std::uint64_t link_row_bytes = 0;  // bytes of rows and scales that a pair sends to other nodes
  std::uint64_t link_bytes = 0;      // all bytes that a pair sends to other nodes
  // The bytes that a pair sends to other groups of each level, from the outermost level to the
  // nodes.
  std::array<CrossedBytes, kMostLevels> crossed = {};
  std::uint64_t window_bytes = 0;  // bytes that are committed at the end
  std::uint64_t compared = 0;      // elements compared with the oracle
  std::uint64_t wrong = 0;         // elements that differ from the oracle
  StoreCounts stores;              // stores of the timed pairs
  int node = 0;
  Algorithm algorithm = Algorithm::kAuto;  // the algorithm that was used; `reason` says why
  std::array<char, 200> reason = {};
};

struct TracedSpan {
  std::array<char, 24> phase = {};
  Interval time;
};

struct TracedOperation {
  std::uint32_t num_spans = 0;
  // Enough for a combine in 17 passes (src/exchange/sums/pending_tokens.h).
  std::array<TracedSpan, 36> spans = {};
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

  // Collective: gives every rank the results of all ranks, for ranks that share no memory. Clocks
  // of hosts differ, so each interval is changed to begin at 0. Throws ferry::Error.
  void gather(Group& group);
};

// The number of exchanges in one batch of the free-running loop.
std::size_t pairs_per_batch(const Plan& plan, const Results& results) noexcept;

// Runs rank group.rank() of `plan`: it sets up, warms up, measures, checks, and fills its part of
// `results`. Throws ferry::Error.
void run_rank(const Plan& plan, Results& results, Group group);

// Writes Chrome trace JSON (chrome://tracing, Perfetto). Each rank has a track with a span for each
// operation. This span holds the wait for each source, and a span for each phase. Times start at
// the first operation. The bytes that ranks sent to other nodes are under otherData.
std::string trace_json(const Results& results);
// Throws std::runtime_error if the file cannot be written.
void write_trace(const std::string& file, const std::string& trace);

}  // namespace ferry::bench
