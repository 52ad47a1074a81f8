// Measures the limit; see limit.h.
#include "tools/bench/limit.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <span>
#include <thread>

#include "base/clock.h"
#include "kernels/kernels.h"
#include "tools/bench/cores.h"
#include "tools/bench/flag_time.h"
#include "tools/bench/memory.h"
#include "tools/bench/statistics.h"

namespace ferry::bench {
namespace {

using internal::Stores;

enum Copy { kMemcpy, kCachedMany, kStreaming, kStreamingMany, kNumCopies };
constexpr const char* kCopyNames[kNumCopies] = {"memcpy", "copy_row_to_many", "streaming copy_row",
                                                "streaming copy_row_to_many"};
enum Reduce { kCachedSum, kStreamingSum, kNumReduces };
constexpr const char* kReduceNames[kNumReduces] = {"reduce_rows", "streaming reduce_rows"};

// A barrier for threads that each have a core. They spin, and yield only after a long wait, when
// another program may have taken a core.
class SpinBarrier {
 public:
  explicit SpinBarrier(std::size_t num_threads) : num_threads_(num_threads) {}

  void wait() noexcept {
    const std::size_t round =
        round_.load(std::memory_order_relaxed);  // changes only after this thread has arrived
    // acq_rel makes all earlier writes of each thread visible to the last thread, which publishes
    // them with round_.
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
      arrived_.store(0, std::memory_order_relaxed);  // the store to round_ below orders this one
      round_.store(round + 1, std::memory_order_release);  // pairs with the acquire below
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins > kSpins) std::this_thread::yield();
    }
  }

 private:
  static constexpr int kSpins = 20'000;
  std::size_t num_threads_;
  alignas(64) std::atomic<std::size_t> arrived_{0};
  alignas(64) std::atomic<std::size_t> round_{0};
};

// One token with its result, and the number of its rows.
struct Job {
  std::byte* token = nullptr;
  std::byte* out = nullptr;
  int num_rows = 0;
};

// The memory of all ranks in one address space, with every slot known. For an encoded row only the
// number of bytes matters: a dispatch copies the first bytes of its token there.
class Traffic {
 public:
  explicit Traffic(const Plan& plan);
  void touch_part(std::size_t thread, std::size_t num_threads) noexcept;
  void dispatch_part(std::size_t thread, std::size_t num_threads, int copy) noexcept;
  void combine_part(std::size_t thread, std::size_t num_threads, int reduce) noexcept;

 private:
  void find_slots();
  std::size_t place_row(std::size_t job, int column);

  const Plan& plan_;
  std::size_t row_bytes_;
  std::size_t wire_row_bytes_;
  std::size_t entries_;
  std::vector<Mapping> received_;  // [R]
  Mapping tokens_;
  Mapping out_;
  std::vector<Mapping> encoded_;  // [R], used only with a wire format
  std::vector<Job> jobs_;         // [tokens of all ranks], in the order of ranks
  // These have the shape [jobs, entries]. A job uses its first num_rows elements, in the order of
  // its entries.
  std::vector<void*> rows_, wire_rows_;
  std::vector<float> weights_;
  std::vector<int> columns_;
};

Traffic::Traffic(const Plan& plan)
    : plan_(plan),
      row_bytes_(plan.options.row_bytes()),
      wire_row_bytes_(plan.options.wire_row_bytes()),
      entries_(static_cast<std::size_t>(plan.options.entries())) {
  const std::size_t num_tokens = static_cast<std::size_t>(plan.num_tokens);
  tokens_ = Mapping(num_tokens * row_bytes_, Mapping::Kind::kPrivate);
  out_ = Mapping(num_tokens * row_bytes_, Mapping::Kind::kPrivate);
  for (const internal::RankReceived& expected : plan.expected) {
    const auto rows = static_cast<std::size_t>(expected.num_rows);
    received_.emplace_back(rows * row_bytes_, Mapping::Kind::kPrivate);
    if (plan.options.shape.wire != Wire::kNone)
      encoded_.emplace_back(rows * wire_row_bytes_, Mapping::Kind::kPrivate);
  }
  jobs_.resize(num_tokens);
  rows_.resize(num_tokens * entries_);
  wire_rows_.resize(rows_.size());
  weights_.resize(rows_.size());
  columns_.resize(rows_.size());
  find_slots();
}

void Traffic::find_slots() {
  std::vector<std::size_t> first_job;
  std::size_t job = 0;
  for (const internal::RankInput& input : plan_.inputs) {
    first_job.push_back(job);
    for (std::size_t token = 0; token < static_cast<std::size_t>(input.num_tokens);
         ++token, ++job) {
      jobs_[job] = {tokens_.data() + job * row_bytes_, out_.data() + job * row_bytes_, 0};
    }
  }
  const auto top_k = static_cast<std::size_t>(plan_.options.shape.top_k);
  for (std::size_t rank = 0; rank < received_.size(); ++rank) {
    const internal::RankReceived& expected = plan_.expected[rank];
    for (std::size_t row = 0; row < expected.row_valid.size(); ++row) {
      if (expected.row_valid[row] == 0) continue;
      const auto source = static_cast<std::size_t>(expected.sources[3 * row]);
      const auto token = static_cast<std::size_t>(expected.sources[3 * row + 1]);
      const auto k = static_cast<std::size_t>(expected.sources[3 * row + 2]);
      const std::size_t at = place_row(first_job[source] + token, static_cast<int>(k));
      rows_[at] = received_[rank].data() + row * row_bytes_;
      wire_rows_[at] = encoded_.empty() ? rows_[at] : encoded_[rank].data() + row * wire_row_bytes_;
      weights_[at] = k < top_k ? plan_.inputs[source].topk_weights[token * top_k + k] : 1.0f;
    }
  }
}

// Finds the place of the row of entry `column` among the rows of its token, which are sorted by
// column.
std::size_t Traffic::place_row(std::size_t job, int column) {
  const std::size_t first = job * entries_;
  std::size_t at = first + static_cast<std::size_t>(jobs_[job].num_rows++);
  for (; at > first && columns_[at - 1] > column; --at) {
    columns_[at] = columns_[at - 1];
    rows_[at] = rows_[at - 1];
    wire_rows_[at] = wire_rows_[at - 1];
    weights_[at] = weights_[at - 1];
  }
  columns_[at] = column;
  return at;
}

void Traffic::touch_part(std::size_t thread, std::size_t num_threads) noexcept {
  for (std::size_t rank = thread; rank < received_.size(); rank += num_threads) {
    const auto rows = static_cast<std::size_t>(plan_.expected[rank].num_rows);
    touch(received_[rank].data(), rows * row_bytes_);
    if (!encoded_.empty()) touch(encoded_[rank].data(), rows * wire_row_bytes_);
  }
  const std::size_t first = jobs_.size() * thread / num_threads,
                    last = jobs_.size() * (thread + 1) / num_threads;
  for (std::size_t job = first; job < last; ++job) {
    fill_token({plan_.options.seed, 0, 0, static_cast<std::int64_t>(job)},
               plan_.options.shape.dtype, plan_.options.shape.hidden, jobs_[job].token);
    touch(jobs_[job].out, row_bytes_);
  }
}

void Traffic::dispatch_part(std::size_t thread, std::size_t num_threads, int copy) noexcept {
  const std::size_t first = jobs_.size() * thread / num_threads,
                    last = jobs_.size() * (thread + 1) / num_threads;
  const Stores stores =
      copy == kStreaming || copy == kStreamingMany ? Stores::kStreaming : Stores::kCached;
  for (std::size_t job = first; job < last; ++job) {
    const std::byte* const token = jobs_[job].token;
    const std::span<void* const> rows(&wire_rows_[job * entries_],
                                      static_cast<std::size_t>(jobs_[job].num_rows));
    if (copy == kMemcpy) {
      for (void* const row : rows) std::memcpy(row, token, wire_row_bytes_);
    } else if (copy == kStreaming) {
      for (void* const row : rows) internal::copy_row(row, token, wire_row_bytes_, stores);
    } else {
      internal::copy_row_to_many(rows.data(), jobs_[job].num_rows, token, wire_row_bytes_, stores);
    }
  }
  internal::stores_fence();
}

void Traffic::combine_part(std::size_t thread, std::size_t num_threads, int reduce) noexcept {
  const std::size_t first = jobs_.size() * thread / num_threads,
                    last = jobs_.size() * (thread + 1) / num_threads;
  const Options& options = plan_.options;
  const bool weighted = options.shape.layout != Layout::kRankMajor;
  for (std::size_t job = first; job < last; ++job) {
    for (int k = 0; job + 1 < last && k < jobs_[job + 1].num_rows; ++k) {
      internal::prefetch_row(rows_[(job + 1) * entries_ + static_cast<std::size_t>(k)], row_bytes_);
    }
    internal::reduce_rows(
        {.rows = const_cast<const void* const*>(&rows_[job * entries_]),
         .weights = weighted ? &weights_[job * entries_] : nullptr,
         .num_rows = jobs_[job].num_rows,
         .row_type = options.shape.dtype,
         .out = jobs_[job].out,
         .out_type = options.shape.dtype,
         .hidden = options.shape.hidden,
         .stores = reduce == kStreamingSum ? Stores::kStreaming : Stores::kCached});
  }
  internal::stores_fence();
}

double microseconds(std::int64_t begin_ns, std::int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) * 1e-3;
}

// One round over all ways to move rows. It first runs each way once, then takes samples of the ways
// that may be the fastest. Every thread runs it; thread 0 keeps the samples and decides how many
// each way gets.
class Round {
 public:
  Round(Traffic& traffic, std::size_t num_threads, std::size_t num_ways)
      : traffic_(traffic),
        num_threads_(num_threads),
        barrier_(num_threads),
        look_us_(num_ways),
        repeats_(num_ways) {}

  void run(std::size_t thread, std::vector<Limit::Way>& ways) {
    traffic_.touch_part(thread, num_threads_);
    for (std::size_t i = 0; i < ways.size(); ++i) {
      // The first pair warms the caches and, in the first round, the address translations.
      pair(thread, ways[i], /*keep=*/false);
      const double us = pair(thread, ways[i], /*keep=*/false);
      if (thread == 0) look_us_[i] = us;
    }
    if (thread == 0) decide();
    barrier_.wait();  // publishes repeats_
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (repeats_[i] > 0) pair(thread, ways[i], /*keep=*/false);
      for (int repeat = 0; repeat < repeats_[i]; ++repeat) pair(thread, ways[i], /*keep=*/true);
    }
  }

 private:
  static constexpr double kWayUs = 60'000;
  // A way that is slower than the fastest by more than this factor gets no samples.
  static constexpr double kHopeless = 1.4;
  static constexpr int kFewest = 5, kMost = 600;

  void decide() {
    const double best_us = *std::min_element(look_us_.begin(), look_us_.end());
    for (std::size_t i = 0; i < repeats_.size(); ++i) {
      if (look_us_[i] > kHopeless * best_us) continue;
      repeats_[i] =
          std::clamp(static_cast<int>(kWayUs / std::max(look_us_[i], 1.0)), kFewest, kMost);
    }
  }

  double pair(std::size_t thread, Limit::Way& way, bool keep) {
    barrier_.wait();
    const std::int64_t begin_ns = internal::now_ns();
    traffic_.dispatch_part(thread, num_threads_, way.copy);
    barrier_.wait();
    const std::int64_t middle_ns = internal::now_ns();
    traffic_.combine_part(thread, num_threads_, way.reduce);
    barrier_.wait();
    const std::int64_t end_ns = internal::now_ns();
    if (thread == 0 && keep) {
      way.dispatch_us.push_back(microseconds(begin_ns, middle_ns));
      way.combine_us.push_back(microseconds(middle_ns, end_ns));
    }
    return microseconds(begin_ns, end_ns);
  }

  Traffic& traffic_;
  std::size_t num_threads_;
  SpinBarrier barrier_;
  std::vector<double> look_us_;  // [ways]
  std::vector<int> repeats_;     // [ways]
};

}  // namespace

Limit::Limit(const Plan& plan) : plan_(plan) {
  const std::size_t wanted = static_cast<std::size_t>(plan.options.ranks) *
                             static_cast<std::size_t>(plan.options.shape.workers);
  num_threads_ = std::min(wanted, allowed_cores().size());
  for (int copy = 0; copy < kNumCopies; ++copy) {
    for (int reduce = 0; reduce < kNumReduces; ++reduce) ways_.push_back({copy, reduce, {}, {}});
  }
}

void Limit::run() {
  std::vector<std::size_t> had;  // [ways]: the number of samples from earlier rounds
  for (const Way& way : ways_) had.push_back(way.dispatch_us.size());
  Traffic traffic(plan_);
  Round round(traffic, num_threads_, ways_.size());
  const std::vector<int> cores = allowed_cores();
  const std::size_t flag_cores = std::max<std::size_t>(num_threads_, 2);
  flags_ns_.push_back(mean_flag_ns(cores, flag_cores));
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < num_threads_; ++thread) {
    threads.emplace_back([&, thread] {
      pin_to(cores, static_cast<int>(thread), 1);
      round.run(thread, ways_);
    });
  }
  for (std::thread& thread : threads) thread.join();
  flags_ns_.push_back(mean_flag_ns(cores, flag_cores));
  double fastest_us = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    const auto of_round = [&](const std::vector<double>& us) {
      return quantiles({us.begin() + static_cast<std::ptrdiff_t>(had[i]), us.end()}).median;
    };
    if (ways_[i].dispatch_us.size() > had[i])
      fastest_us =
          std::min(fastest_us, of_round(ways_[i].dispatch_us) + of_round(ways_[i].combine_us));
  }
  rounds_us_.push_back(fastest_us);
}

LimitTimes Limit::times() const {
  LimitTimes best;
  for (const Way& way : ways_) {
    if (way.dispatch_us.empty()) continue;
    const double dispatch_us = quantiles(way.dispatch_us).median,
                 combine_us = quantiles(way.combine_us).median;
    if (best.pair_us != 0 && dispatch_us + combine_us >= best.pair_us) continue;
    best = {dispatch_us, combine_us, dispatch_us + combine_us, kCopyNames[way.copy],
            kReduceNames[way.reduce]};
  }
  best.rounds_us = rounds_us_;
  best.flags_ns = flags_ns_;
  return best;
}

}  // namespace ferry::bench
