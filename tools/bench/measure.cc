// Measures one plan in order, and computes the reported values from the times; see measure.h.
#include "tools/bench/measure.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "ferry/topology.h"
#include "tools/bench/ranks.h"
#include "tools/bench/results.h"

namespace ferry::bench {
namespace {

constexpr std::size_t kMostBatches = 10;
constexpr double kDefaultRunUs = 500'000;
constexpr int kFewestIterations = 20, kMostIterations = 2000, kLaunchedIterations = 50;

void summarise(const Plan& plan, const Results& results, Measurement& measurement) {
  const std::size_t ranks = results.num_ranks, iterations = results.num_iterations;
  measurement.dispatch_us = quantiles(spans_us(&results.dispatch[0], ranks, iterations));
  measurement.combine_us = quantiles(spans_us(&results.combine[0], ranks, iterations));
  std::vector<double> batches_us = spans_us(&results.pairs[0], ranks, results.num_batches);
  for (double& us : batches_us) us /= static_cast<double>(pairs_per_batch(plan, results));
  measurement.pair_us = quantiles(std::move(batches_us));
  for (std::size_t rank = 0; rank < results.num_ranks; ++rank) {
    const RankSummary& summary = results.summary[rank];
    measurement.dispatch_bytes += summary.sent_bytes;
    measurement.combine_bytes += summary.pulled_bytes;
    measurement.window_bytes += summary.window_bytes;
    measurement.compared += summary.compared;
    measurement.wrong += summary.wrong;
    measurement.rows.stores.push_back(summary.stores);
  }
}

// The topology of the group: the given one, or a topology whose only level is nodes.
Topology topology_of(const Options& options, const Results& results) {
  const std::string text = !options.topology.empty()
                               ? options.topology
                               : internal::environment_or_empty("FERRY_TOPOLOGY");
  if (!text.empty()) return Topology::parse(text);
  std::vector<int> nodes;
  for (std::size_t rank = 0; rank < results.num_ranks; ++rank)
    nodes.push_back(results.summary[rank].node);
  return Topology::from_nodes(nodes);
}

double limit_us(const Topology::Link& link, double bytes) {
  const double bytes_per_us = link.total_gb_s() * link.count * 1e3;
  return bytes_per_us > 0 ? bytes / bytes_per_us : 0;
}

// The bytes that leave a group of this level over all its links, for the group that sends the most.
LevelBytes crossed_bytes(const Topology& topology, int index, const Results& results) {
  const Topology::Level& level = topology.level(index);
  LevelBytes most{.name = level.name};
  for (int group = 0; group < level.num_groups(); ++group) {
    CrossedBytes sent;
    for (const int rank : topology.members(group, index)) {
      sent.rows += results.summary[rank].crossed[index].rows;
      sent.all += results.summary[rank].crossed[index].all;
    }
    most.bytes = std::max(most.bytes, static_cast<double>(sent.rows));
    most.all_bytes = std::max(most.all_bytes, static_cast<double>(sent.all));
  }
  most.limit_us = limit_us(level.link, most.bytes);
  return most;
}

// The bytes that a rank writes and reads, for the rank with the most.
LevelBytes moved_bytes(const Topology& topology, const Results& results) {
  LevelBytes most{.name = std::string(Topology::kRank)};
  for (std::size_t rank = 0; rank < results.num_ranks; ++rank) {
    const RankSummary& summary = results.summary[rank];
    most.bytes =
        std::max(most.bytes, static_cast<double>(summary.sent_bytes + summary.pulled_bytes));
  }
  most.all_bytes = most.bytes;
  most.limit_us = limit_us(topology.level(topology.num_levels() - 1).link, most.bytes);
  return most;
}

void summarise_levels(const Plan& plan, const Results& results, Measurement& measurement) {
  const Topology topology = topology_of(plan.options, results);
  const int host = topology.num_nodes() > 1 ? topology.find_level(Topology::kHost) : -1;
  for (int index = 0; index <= host && index < RankSummary::kMostLevels; ++index)
    measurement.levels.push_back(crossed_bytes(topology, index, results));
  measurement.levels.push_back(moved_bytes(topology, results));
  measurement.algorithm = results.summary[0].algorithm;
  measurement.algorithm_reason = results.summary[0].reason.data();
}

// Counts the rows that each rank sends to each rank, and to each expert.
void count_rows(const Plan& plan, Measurement& measurement) {
  measurement.rows.between.assign(plan.expected.size(),
                                  std::vector<std::int64_t>(plan.expected.size()));
  for (std::size_t rank = 0; rank < plan.expected.size(); ++rank) {
    const internal::RankReceived& received = plan.expected[rank];
    measurement.rows.of_experts.push_back(received.tokens_per_expert);
    for (std::size_t row = 0; row < received.sources.size(); row += 3) {
      const std::int32_t source = received.sources[row];
      if (source >= 0) ++measurement.rows.between[static_cast<std::size_t>(source)][rank];
    }
  }
}

}  // namespace

Measurement measure(Plan& plan, const Progress& progress) {
  // Ranks on several hosts share no memory, so that no limit is measured.
  const bool one_machine = plan.options.mode != Mode::kEnvironment;
  Limit limit(plan);
  if (one_machine) {
    progress("measuring the limit");
    limit.run();
  }
  if (plan.options.iterations == 0) {
    const double wanted =
        one_machine ? kDefaultRunUs / std::max(limit.times().pair_us, 1.0) : kLaunchedIterations;
    plan.options.iterations =
        static_cast<int>(std::clamp<double>(wanted, kFewestIterations, kMostIterations));
  }
  const std::size_t iterations = static_cast<std::size_t>(plan.options.iterations);
  Results results(static_cast<std::size_t>(plan.options.ranks), iterations,
                  std::min(iterations, kMostBatches), plan.options.traced());
  progress("measuring the ranks");
  run_ranks(plan.options, [&](Group group) { run_rank(plan, results, std::move(group)); });
  if (one_machine) {
    progress("measuring the limit again");
    limit.run();
  }
  progress("");
  Measurement measurement;
  if (plan.options.traced()) measurement.trace = trace_json(results);
  if (!plan.options.trace.empty()) write_trace(plan.options.trace, measurement.trace);
  if (!plan.options.report.empty()) count_rows(plan, measurement);
  measurement.tokens = plan.options.shape.max_tokens;
  measurement.iterations = plan.options.iterations;
  if (one_machine) measurement.limit = limit.times();
  measurement.rows.all = plan.num_rows;
  measurement.rows.remote = plan.remote_rows;
  measurement.rows.imbalance = plan.imbalance;
  summarise(plan, results, measurement);
  summarise_levels(plan, results, measurement);
  return measurement;
}

}  // namespace ferry::bench
