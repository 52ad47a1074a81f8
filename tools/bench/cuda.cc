#include "tools/bench/cuda.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/round_up.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "ferry/cuda.h"
#include "kernels/kernels.h"
#include "tools/bench/statistics.h"

namespace ferry::bench {

namespace {

using internal::cuda_check;

constexpr int kRounds = 7, kPairsOfGraph = 10;
// A thread that issues more calls than the queue of the driver holds waits for space in it, and
// holds a lock of the driver meanwhile. The other ranks of the process then wait as well
// (docs/cuda.md).
constexpr int kPairsAhead = 40;

// One rank: its exchange, its tensors on the device, and a graph of some pairs.
class RankOnCuda {
 public:
  RankOnCuda(const Plan& plan, Group group) : plan_(plan), group_(std::move(group)) {
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    exchange_ = cuda::Exchange(group_, plan.config, 0);
    const internal::RankInput& input = plan.inputs[group_.rank()];
    const std::size_t row_bytes = plan.options.row_bytes();
    host_tokens_.resize(input.num_tokens * row_bytes);
    for (std::int64_t token = 0; token < input.num_tokens; ++token)
      fill_token({plan.options.seed, 0, group_.rank(), token}, plan.config.dtype,
                 plan.config.hidden, host_tokens_.data() + token * row_bytes);
    tokens_ = copied(host_tokens_.data(), host_tokens_.size());
    ids_ = copied(input.topk_ids.data(), input.topk_ids.size() * sizeof(std::int64_t));
    out_ =
        internal::device_memory(input.num_tokens * plan.config.hidden * element_bytes(out_type()));
  }
  ~RankOnCuda() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  RankOnCuda(const RankOnCuda&) = delete;
  RankOnCuda& operator=(const RankOnCuda&) = delete;

  void pair(bool wait) {
    const internal::RankInput& input = plan_.inputs[group_.rank()];
    const ExchangeConfig& config = plan_.config;
    require_ok(exchange_.dispatch(
        {.tokens = {tokens_.get(), input.num_tokens, config.hidden, config.dtype, 0},
         .topk_ids = {ids_.get(), input.num_tokens, config.top_k, IndexType::kInt64},
         .wait_for_counts = wait,
         .stream = stream_},
        received_));
    Rows rows = received_.rows();
    // Rows of fp8 are narrower than outputs of experts.
    if (config.wire != Wire::kNone) rows.data = exchange_.outputs(), rows.dtype = out_type();
    require_ok(exchange_.combine({.handle = received_.handle,
                                  .expert_rows = rows,
                                  .out = out_.get(),
                                  .out_dtype = out_type(),
                                  .stream = stream_}));
  }

  void capture() {
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
               "beginning a graph");
    for (int i = 0; i < kPairsOfGraph; ++i) pair(false);
    cuda_check(cudaStreamEndCapture(stream_, &graph), "ending a graph");
    cuda_check(cudaGraphInstantiate(&graph_, graph, 0), "making a graph");
    cudaGraphDestroy(graph);
    // This call prepares the graph for its launch. Otherwise the first launch would wait for all
    // kernels, and some of these kernels wait for this rank.
    cuda_check(cudaGraphUpload(graph_, stream_), "preparing a graph");
    cuda_check(cudaStreamSynchronize(stream_), "preparing a graph");
  }

  // The time of one pair of all ranks together, in microseconds.
  double time_pairs(int pairs, bool from_graph) {
    require_ok(group_.barrier());
    const std::int64_t begin = internal::now_ns();
    for (int i = 0; i < pairs; i += from_graph ? kPairsOfGraph : 1) {
      if (from_graph) {
        cuda_check(cudaGraphLaunch(graph_, stream_), "replaying a graph");
        if (i % kPairsAhead == 0)
          cuda_check(cudaStreamSynchronize(stream_), "waiting for the device");
      } else {
        pair(true);
      }
    }
    cuda_check(cudaStreamSynchronize(stream_), "waiting for the device");
    require_ok(group_.barrier());
    const auto ns = static_cast<double>(internal::now_ns() - begin);
    require_ok(exchange_.check());
    return ns * 1e-3 / pairs;
  }

  // Counts the wrong results. The result of a token must be the sum of as many copies of the token
  // as it has entries.
  std::uint64_t num_wrong() const {
    if (plan_.config.wire != Wire::kNone || plan_.config.layout == Layout::kRankMajor) return 0;
    const internal::RankInput& input = plan_.inputs[group_.rank()];
    const ExchangeConfig& config = plan_.config;
    const std::size_t bytes = element_bytes(config.dtype), row_bytes = plan_.options.row_bytes();
    std::vector<std::byte> out(host_tokens_.size());
    cuda_check(cudaMemcpy(out.data(), out_.get(), out.size(), cudaMemcpyDeviceToHost),
               "reading results");
    std::uint64_t wrong = 0;
    for (std::size_t at = 0; at < out.size(); at += bytes) {
      const std::int64_t* ids = &input.topk_ids[at / row_bytes * config.top_k];
      float sum = 0;
      for (int k = 0; k < config.top_k; ++k)
        if (ids[k] >= 0) sum += internal::to_float(&host_tokens_[at], config.dtype);
      wrong += internal::to_float(&out[at], config.dtype) != rounded(sum, config.dtype) ? 1 : 0;
    }
    return wrong;
  }

 private:
  static float rounded(float value, DataType type) {
    std::byte element[4];
    internal::from_float(value, element, type);
    return internal::to_float(element, type);
  }
  DataType out_type() const { return plan_.config.dtype; }
  static std::shared_ptr<std::byte> copied(const void* data, std::size_t bytes) {
    std::shared_ptr<std::byte> memory = internal::device_memory(bytes);
    cuda_check(cudaMemcpy(memory.get(), data, bytes, cudaMemcpyHostToDevice),
               "filling device memory");
    return memory;
  }

  const Plan& plan_;
  Group group_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  cuda::Exchange exchange_;
  cuda::Received received_;
  std::vector<std::byte> host_tokens_;
  std::shared_ptr<std::byte> tokens_, ids_, out_;
};

// The least number of bytes that a pair reads and writes. A dispatch reads each token and writes
// each row; a combine reads each row and writes each result.
double bytes_of_pair(const Plan& plan) {
  const auto tokens = static_cast<double>(plan.num_tokens),
             rows = static_cast<double>(plan.num_rows);
  const auto token_bytes = static_cast<double>(plan.options.row_bytes());
  const auto wire_bytes =
      static_cast<double>(plan.options.wire_row_bytes() + plan.options.wire_scale_bytes());
  return tokens * token_bytes + rows * wire_bytes + rows * token_bytes + tokens * token_bytes;
}

// Copies half of the given number of bytes. Each byte is read once and written once, so this moves
// as many bytes as a pair.
class Copies {
 public:
  explicit Copies(double bytes)
      : bytes_(static_cast<std::size_t>(bytes / 2) / 16 * 16),
        from_(internal::device_memory(bytes_)),
        to_(internal::device_memory(bytes_)) {}
  double time_us(bool by_kernel, int times) const {
    const auto issue = [&] {
      if (by_kernel) {
        internal::launch_copy(from_.get(), to_.get(), bytes_, nullptr);
      } else {
        cuda_check(
            cudaMemcpyAsync(to_.get(), from_.get(), bytes_, cudaMemcpyDeviceToDevice, nullptr),
            "copying");
      }
    };
    issue();
    cuda_check(cudaDeviceSynchronize(), "copying");
    const std::int64_t begin = internal::now_ns();
    for (int i = 0; i < times; ++i) issue();
    cuda_check(cudaDeviceSynchronize(), "copying");
    return static_cast<double>(internal::now_ns() - begin) * 1e-3 / times;
  }

 private:
  std::size_t bytes_;
  std::shared_ptr<std::byte> from_, to_;
};

Plan fitted(const Plan& plan) {
  Plan fit = plan;
  std::int64_t rows = 1, of_expert = 1;
  for (const internal::RankReceived& received : plan.expected) {
    rows = std::max(rows, received.num_rows);
    for (const std::int64_t each : received.tokens_per_expert)
      of_expert = std::max(of_expert, each);
  }
  if (fit.config.layout == Layout::kPadded) {
    fit.config.expert_capacity = of_expert;
  } else {
    fit.config.row_capacity = rows;
  }
  return fit;
}

struct Samples {
  std::vector<double> pair_us, graph_us, memcpy_us, copy_us;  // rank 0 writes these
  std::atomic<std::uint64_t> wrong{0};  // a sum over ranks, read after all ranks have ended
};

// Runs one rank. Rank 0 also times the copies, while the other ranks wait for it.
void run_rank(const Plan& plan, const Copies& copies, int pairs, Group group, Samples& samples) {
  RankOnCuda rank(plan, group);
  rank.time_pairs(kPairsOfGraph, false);
  if (plan.options.check) samples.wrong += rank.num_wrong();
  rank.capture();
  rank.time_pairs(kPairsOfGraph, true);
  const int num_copies = std::max(pairs / 4, 3);
  for (int round = 0; round < kRounds; ++round) {
    require_ok(group.barrier());
    if (group.rank() == 0) {
      samples.memcpy_us.push_back(copies.time_us(false, num_copies));
      samples.copy_us.push_back(copies.time_us(true, num_copies));
    }
    const double issued = rank.time_pairs(pairs, false), replayed = rank.time_pairs(pairs, true);
    if (group.rank() == 0) samples.pair_us.push_back(issued), samples.graph_us.push_back(replayed);
  }
  if (plan.options.check) samples.wrong += rank.num_wrong();
}

}  // namespace

CudaTimes measure_on_cuda(const Plan& given) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);  // docs/cuda.md: ranks that are threads
  if (cuda::num_devices() == 0) refuse("--device cuda: this machine has no CUDA device");
  const Plan plan = fitted(given);
  CudaTimes times;
  times.gigabytes = bytes_of_pair(plan) * 1e-9;
  const Copies copies(bytes_of_pair(plan));
  const int wanted = plan.options.iterations > 0
                         ? plan.options.iterations
                         : std::clamp(static_cast<int>(300 / times.gigabytes), 10, 200);
  Samples samples;
  run_threads(plan.options.ranks,
              [&](Group group) {
                run_rank(plan, copies, internal::round_up(wanted, kPairsOfGraph), std::move(group),
                         samples);
              },
              {.deadline = std::chrono::seconds(10)});
  times.pair_us = quantiles(samples.pair_us).median;
  times.graph_us = quantiles(samples.graph_us).median;
  times.memcpy_us = quantiles(samples.memcpy_us).median;
  times.copy_us = quantiles(samples.copy_us).median;
  times.wrong = samples.wrong;
  return times;
}

std::string cuda_table(const std::vector<Plan>& plans, const std::vector<CudaTimes>& times) {
  cudaDeviceProp device;
  cuda_check(cudaGetDeviceProperties(&device, 0), "reading the properties of the device");
  std::string text = fmt::format(
      "{} ranks, threads that share one {}; medians of {} rounds, us. A copy moves the bytes of a "
      "pair: each token\n"
      "read and each row written once, each row read and each result written once.\n"
      "tokens   GB moved  memcpy  copy kernel    pair  of memcpy's rate   graph  of memcpy's rate  "
      "over it\n",
      plans[0].options.ranks, device.name, kRounds);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const CudaTimes& t = times[i];
    text += fmt::format(
        "{:>6} {:>10.3f} {:>7.0f} {:>12.0f} {:>7.0f} {:>17.0f}% {:>7.0f} {:>17.0f}% {:>8.0f}\n",
        plans[i].options.shape.max_tokens, t.gigabytes, t.memcpy_us, t.copy_us, t.pair_us,
        100 * t.memcpy_us / t.pair_us, t.graph_us, 100 * t.memcpy_us / t.graph_us,
        t.graph_us - t.memcpy_us);
  }
  return text;
}

std::string cuda_json(const Plan& plan, const CudaTimes& t) {
  return nlohmann::json{{"device", "cuda"},
                        {"ranks", plan.options.ranks},
                        {"tokens", plan.options.shape.max_tokens},
                        {"gigabytes", t.gigabytes},
                        {"pair_us", t.pair_us},
                        {"graph_us", t.graph_us},
                        {"memcpy_us", t.memcpy_us},
                        {"copy_us", t.copy_us},
                        {"wrong", t.wrong}}
      .dump();
}

}  // namespace ferry::bench
