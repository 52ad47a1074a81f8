// Runs the timed loops of a rank, and exchanges the results between ranks that a launcher started;
// see results.h. Calls the engine and, after the loops, check.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "ferry/exchange.h"
#include "group/state.h"
#include "tools/bench/check.h"
#include "tools/bench/memory.h"
#include "tools/bench/results.h"

namespace ferry::bench {
namespace {

class RankBench {
 public:
  RankBench(const Plan& plan, Results& results, Group group);

  void warm_up();
  void time_phases();
  void time_pairs();
  void trace();
  void check();
  void summarise();

 private:
  BetweenNodes between_nodes() const;
  std::size_t num_tokens() const {
    return static_cast<std::size_t>(dispatch_args_.tokens.num_rows);
  }
  void fill_tokens(std::uint64_t salt);
  void dispatch();
  void combine();
  Rows expert_rows();
  void fill_outputs(std::uint64_t salt);
  void release();
  void exchange_once();
  void record(std::size_t operation, const OperationTimes& times);
  void compare(std::uint64_t salt);

  const Plan& plan_;
  Results& results_;
  Group group_;
  std::size_t rank_;
  Mapping tokens_;
  Mapping out_;
  Exchange exchange_;
  DispatchArgs dispatch_args_;
  CombineArgs combine_args_;
  Received received_;
  OutputRows outputs_;  // the experts' outputs, used if received rows are encoded
  std::uint64_t num_exchanges_ = 0;
};

RankBench::RankBench(const Plan& plan, Results& results, Group group)
    : plan_(plan),
      results_(results),
      group_(std::move(group)),
      rank_(static_cast<std::size_t>(group_.rank())) {
  const internal::RankInput& input = plan.inputs[rank_];
  const std::size_t bytes = static_cast<std::size_t>(input.num_tokens) * plan.options.row_bytes();
  tokens_ = Mapping(bytes, Mapping::Kind::kPrivate);
  out_ = Mapping(bytes, Mapping::Kind::kPrivate);
  touch(out_.data(), bytes);
  dispatch_args_.tokens = {tokens_.data(), input.num_tokens, plan.options.shape.hidden,
                           plan.options.shape.dtype, 0};
  dispatch_args_.topk_ids = {input.topk_ids.data(), input.num_tokens, plan.options.shape.top_k,
                             IndexType::kInt64};
  dispatch_args_.topk_weights = input.topk_weights.data();
  if (!input.topk_mask.empty()) dispatch_args_.topk_mask = input.topk_mask.data();
  combine_args_.topk_weights =
      plan.options.shape.layout == Layout::kRankMajor ? nullptr : input.topk_weights.data();
  combine_args_.out = out_.data();
  combine_args_.out_dtype = plan.options.shape.dtype;
  fill_tokens(0);
  exchange_ = Exchange(group_, plan.config);
}

void RankBench::fill_tokens(std::uint64_t salt) {
  for (std::size_t token = 0; token < num_tokens(); ++token) {
    fill_token(
        {plan_.options.seed, salt, static_cast<int>(rank_), static_cast<std::int64_t>(token)},
        plan_.options.shape.dtype, plan_.options.shape.hidden,
        tokens_.data() + token * plan_.options.row_bytes());
  }
}

void RankBench::dispatch() { require_ok(exchange_.dispatch(dispatch_args_, received_)); }

// The outputs of identity experts. Without a wire format these are the received rows, in place.
// Encoded rows cannot be outputs: then the outputs are in separate memory of the window and are
// written once.
Rows RankBench::expert_rows() {
  if (plan_.options.shape.wire == Wire::kNone) return received_.rows();
  if (!outputs_.data) {
    require_ok(exchange_.allocate_outputs(received_.num_rows, plan_.options.shape.hidden,
                                          plan_.options.shape.dtype, outputs_));
    fill_outputs(0);
  }
  return outputs_.rows();
}

void RankBench::fill_outputs(std::uint64_t salt) {
  const internal::RankReceived& expected = plan_.expected[rank_];
  for (std::size_t row = 0; outputs_.data && row < expected.row_valid.size(); ++row) {
    if (expected.row_valid[row] == 0) continue;
    fill_token({plan_.options.seed, salt, expected.sources[3 * row], expected.sources[3 * row + 1]},
               plan_.options.shape.dtype, plan_.options.shape.hidden,
               static_cast<std::byte*>(outputs_.data) + row * plan_.options.row_bytes());
  }
}

void RankBench::combine() {
  combine_args_.handle = received_.handle;
  combine_args_.expert_rows = expert_rows();
  require_ok(exchange_.combine(combine_args_));
  ++num_exchanges_;
}

// Releases the receive buffer before the next dispatch takes one, so that all exchanges use the
// same buffer, as the exchanges of a layer do.
void RankBench::release() {
  combine_args_.handle = Handle();
  received_.release();
}

void RankBench::exchange_once() {
  dispatch();
  combine();
  release();
}

void RankBench::warm_up() {
  for (int i = 0; i < plan_.options.warmup; ++i) exchange_once();
}

void RankBench::time_phases() {
  for (std::size_t i = 0; i < results_.num_iterations; ++i) {
    Interval& dispatch_time = results_.dispatch[rank_ * results_.num_iterations + i];
    Interval& combine_time = results_.combine[rank_ * results_.num_iterations + i];
    require_ok(group_.barrier());
    dispatch_time.begin_ns = internal::now_ns();
    dispatch();
    dispatch_time.end_ns = internal::now_ns();
    require_ok(group_.barrier());
    combine_time.begin_ns = internal::now_ns();
    combine();
    combine_time.end_ns = internal::now_ns();
    release();
  }
}

void RankBench::time_pairs() {
  const std::size_t pairs = pairs_per_batch(plan_, results_);
  for (std::size_t batch = 0; batch < results_.num_batches; ++batch) {
    Interval& time = results_.pairs[rank_ * results_.num_batches + batch];
    require_ok(group_.barrier());
    time.begin_ns = internal::now_ns();
    for (std::size_t i = 0; i < pairs; ++i) {
      exchange_once();
      results_.summary[rank_].stores.add(exchange_.last_dispatch_times());
    }
    time.end_ns = internal::now_ns();
  }
}

void RankBench::record(std::size_t operation, const OperationTimes& times) {
  const std::size_t index = rank_ * Results::kTracedExchanges * 2 + operation;
  TracedOperation& traced = results_.traced[index];
  traced.num_spans = static_cast<std::uint32_t>(std::min(times.spans.size(), traced.spans.size()));
  for (std::size_t i = 0; i < traced.num_spans; ++i) {
    TracedSpan& span = traced.spans[i];
    std::strncpy(span.phase.data(), times.spans[i].phase, span.phase.size() - 1);
    span.time = {times.spans[i].begin_ns, times.spans[i].end_ns};
  }
  const std::size_t sources = std::min(times.wait_ns.size(), results_.num_ranks);
  for (std::size_t source = 0; source < sources; ++source) {
    results_.traced_wait_ns[index * results_.num_ranks + source] = times.wait_ns[source];
  }
}

// The trace is recorded in a loop of its own, since recording would disturb the timed loops.
void RankBench::trace() {
  require_ok(group_.barrier());
  for (std::size_t i = 0; i < Results::kTracedExchanges; ++i) {
    dispatch();
    record(2 * i, exchange_.last_dispatch_times());
    combine();
    record(2 * i + 1, exchange_.last_combine_times());
    release();
  }
}

BetweenNodes RankBench::between_nodes() const {
  BetweenNodes result{.nodes = {}, .outer = {}, .algorithm = exchange_.algorithm().algorithm};
  const Topology& topology = group_.topology();
  for (int rank = 0; rank < group_.size(); ++rank) {
    result.nodes.push_back(topology.node_of(rank));
    std::vector<int>& groups = result.outer.emplace_back();
    for (int level = 0; level < topology.find_level(Topology::kHost); ++level)
      groups.push_back(topology.group_of(rank, level));
  }
  return result;
}

void RankBench::compare(std::uint64_t salt) {
  std::memset(out_.data(), 0xff, num_tokens() * plan_.options.row_bytes());
  dispatch();
  combine();
  RankSummary& summary = results_.summary[rank_];
  for (const Comparison& comparison :
       {compare_received(plan_, rank_, salt, received_),
        compare_combined(plan_, rank_, salt, out_.data(), between_nodes())}) {
    summary.compared += comparison.compared;
    summary.wrong += comparison.wrong;
  }
  release();
}

// Compares twice, with new contents in between. If bytes of the first exchange remain in windows or
// results, they are wrong in the second.
void RankBench::check() {
  compare(0);
  require_ok(group_.barrier());  // until then peers may read this rank's outputs
  fill_tokens(1);
  fill_outputs(1);
  compare(1);
}

void RankBench::summarise() {
  const ExchangeStats stats = exchange_.stats();
  RankSummary& summary = results_.summary[rank_];
  if (num_exchanges_ > 0) {
    summary.sent_bytes = stats.bytes_sent / num_exchanges_;
    summary.pulled_bytes = stats.bytes_pulled / num_exchanges_;
    summary.link_row_bytes = stats.link_row_bytes / num_exchanges_;
    summary.link_bytes = stats.link_bytes / num_exchanges_;
    const std::vector<CrossedBytes> levels = exchange_.crossed_bytes();
    for (std::size_t i = 0; i < std::min(levels.size(), summary.crossed.size()); ++i)
      summary.crossed[i] = {levels[i].rows / num_exchanges_, levels[i].all / num_exchanges_};
  }
  summary.node = group_.topology().node_of(rank_);
  const auto& choice = exchange_.algorithm();
  summary.algorithm = choice.algorithm;
  choice.reason.copy(summary.reason.data(), summary.reason.size() - 1);
  summary.window_bytes = exchange_.window_bytes().expected;
}

template <typename T>
void gather_array(SharedArray<T>& array, Group& group) {
  const std::size_t count = array.size() / static_cast<std::size_t>(group.size());
  T* const all = &array[0];
  T* const begin = all + count * static_cast<std::size_t>(group.rank());
  const std::vector<T> mine(begin, begin + count);
  require_ok(group.all_gather(mine.data(), count * sizeof(T), all));
}

}  // namespace

void Results::gather(Group& group) {
  for (SharedArray<Interval>* intervals : {&dispatch, &combine, &pairs}) {
    for (std::size_t i = 0; i < intervals->size(); ++i) {
      Interval& interval = (*intervals)[i];
      interval = {0, interval.end_ns - interval.begin_ns};
    }
    gather_array(*intervals, group);
  }
  gather_array(summary, group);
}

std::size_t pairs_per_batch(const Plan& plan, const Results& results) noexcept {
  const std::size_t iterations = static_cast<std::size_t>(plan.options.iterations);
  return (iterations + results.num_batches - 1) / results.num_batches;
}

void run_rank(const Plan& plan, Results& results, Group group) {
  RankBench bench(plan, results, group);
  bench.warm_up();
  bench.time_phases();
  bench.time_pairs();
  if (plan.options.traced()) bench.trace();
  if (plan.options.check) bench.check();
  bench.summarise();
  if (plan.options.mode == Mode::kEnvironment) results.gather(group);
}

}  // namespace ferry::bench
