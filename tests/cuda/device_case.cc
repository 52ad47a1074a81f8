#include "cuda/device_case.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "cuda/memory.h"
#include "exchange/frame.h"
#include "kernels/kernels.h"

namespace ferry::test {

namespace {

using internal::RankInput;
using internal::RankReceived;

// No kernel is loaded while another kernel waits (docs/cuda.md).
[[maybe_unused]] const int kLoading = setenv("CUDA_MODULE_LOADING", "EAGER", 0);
constexpr std::size_t kArenaBytes = std::size_t{128} << 20;

void strip_config(ExchangeConfig& config) {
  config.tp_size = 1, config.shared = {}, config.special = {}, config.replicas = {};
  config.combine_wire = CombineWire::kNone, config.scale_bytes = 0;
  config.scale_order = ScaleOrder::kRowMajor;
  if (config.wire == Wire::kInt8 || config.wire == Wire::kInt8Static) config.wire = Wire::kFp8;
}

std::int64_t most_of_an_expert(const Scenario& scenario) {
  std::int64_t most = 1;
  for (const Round& round : scenario.rounds) {
    std::map<std::int64_t, std::int64_t> rows;
    for (const RankInput& input : round.inputs) {
      for (const std::int64_t id : masked_ids(input, scenario.config.top_k))
        most = std::max(most, ++rows[id]);
    }
  }
  return most;
}

CombineCase plain_combine(const ExchangeConfig& config, const Round& round,
                          const CombineCase& drawn, Random& random) {
  CombineCase combine = random_combine(config, round, drawn.hidden, drawn.row_type, random);
  combine.weights_home = combine.from_tensors = false;
  for (internal::RankOutput& output : combine.outputs) {
    output.row_weights.clear(), output.shared_output.clear();
    output.residual.clear(), output.gamma.clear();
    output.alpha1.clear(), output.alpha2.clear(), output.v.clear();
    output.partials = Partials::kNone;
  }
  expect_combine(config, round, combine);
  return combine;
}

// Equal bytes, or both NaN.
void require_same_elements(const std::vector<std::byte>& seen, const std::byte* expected,
                           DataType type, const std::string& what) {
  if (std::memcmp(seen.data(), expected, seen.size()) == 0) return;
  const std::size_t bytes = element_bytes(type);
  for (std::size_t at = 0; at < seen.size(); at += bytes) {
    if (std::memcmp(&seen[at], expected + at, bytes) == 0) continue;
    const bool floats = type <= DataType::kFp32;
    const float a = floats ? internal::to_float(&seen[at], type) : 0,
                b = floats ? internal::to_float(expected + at, type) : 0;
    if (std::isnan(a) && std::isnan(b)) continue;
    throw Failure(what + ": element " + std::to_string(at / bytes) + " is " + std::to_string(a) +
                  " instead of " + std::to_string(b));
  }
}

std::vector<std::uint8_t> defined_rows(const ExchangeConfig& config, const RankReceived& expected,
                                       bool metadata) {
  if (config.zero_gaps || (metadata && config.layout != Layout::kPadded))
    return std::vector<std::uint8_t>(expected.num_rows, 1);
  return expected.row_valid;
}

// Takes `each` elements of each row that `rows` names.
template <typename T>
void require_rows(const T* seen_at, const std::vector<T>& expected,
                  const std::vector<std::uint8_t>& rows, std::int64_t each,
                  const std::string& what) {
  const std::vector<T> seen = read_elements(seen_at, static_cast<std::int64_t>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (rows[i / each] == 0 || seen[i] == expected[i]) continue;
    throw Failure(what + ": row " + std::to_string(i / each) + " has " + std::to_string(seen[i]) +
                  " instead of " + std::to_string(expected[i]));
  }
}

void require_counts(const cuda::Handle& handle, const RankReceived& expected,
                    const std::string& what) {
  const auto num_local = static_cast<std::int64_t>(expected.tokens_per_expert.size());
  const auto same = [&](const std::int64_t* at, const std::vector<std::int64_t>& values,
                        const char* name) {
    const std::vector<std::int64_t> seen =
        read_elements(at, static_cast<std::int64_t>(values.size()));
    require_equal<std::int64_t>(seen, values, what + ", " + name);
  };
  same(handle.device_tokens_per_expert(), expected.tokens_per_expert, "tokens_per_expert");
  same(handle.device_aligned_tokens_per_expert(), expected.aligned_tokens_per_expert,
       "aligned_tokens_per_expert");
  if (num_local > 0)
    same(handle.device_expert_offsets(), expected.expert_offsets, "expert_offsets");
  same(handle.device_running_counts(), expected.running_counts, "running_counts");
  same(handle.device_running_rows_per_rank(), expected.running_rows_per_rank,
       "running_rows_per_rank");
  require_equal<std::int64_t>(handle.tokens_per_expert(), expected.tokens_per_expert,
                              what + ", on the host");
  require_equal<std::int64_t>(handle.aligned_tokens_per_expert(),
                              expected.aligned_tokens_per_expert, what + ", aligned, on the host");
}

// The part of one rank.
class Player {
 public:
  Player(const Group& group, const Scenario& scenario, const PlayChoices& choices)
      : group_(group),
        rank_(group.rank()),
        scenario_(scenario),
        choices_(choices),
        exchange_(group, scenario.config, 0),
        handles_(scenario.rounds.size()),
        random_(scenario.seed, rank_) {}

  void play(std::size_t number) {
    const Round& round = scenario_.rounds[number];
    const std::string what = "round " + std::to_string(number) + ", rank " + std::to_string(rank_);
    const cuda::Received received = dispatch(round, what);
    stream_.finish();
    require(received.handle.num_rows() == round.expected[rank_].num_rows,
            what + ": " + std::to_string(received.handle.num_rows()) + " rows instead of " +
                std::to_string(round.expected[rank_].num_rows));
    require((received.weights != nullptr) == round.weights, what + ": whether weights came");
    require_counts(received.handle, round.expected[rank_], what);
    require_received(exchange_.config(), received, round.expected[rank_], what);
    handles_[number] = received.handle;
    for (std::size_t i = 0; i < round.combines.size(); ++i)
      combine(round.inputs[rank_], round.combines[i], received, i,
              what + ", combine " + std::to_string(i));
  }

 private:
  cuda::Received dispatch(const Round& round, const std::string& what) {
    const RankInput& input = round.inputs[rank_];
    const ExchangeConfig& config = scenario_.config;
    const OnCuda tokens(input.tokens), ids(masked_ids(input, config.top_k)),
        weights(input.topk_weights);
    cuda::DispatchArgs args{
        .tokens = {tokens.get(), input.num_tokens, config.hidden, config.dtype, 0}};
    if (round.cached_from >= 0) {
      args.cached = handles_[round.cached_from];
    } else {
      args.topk_ids = {ids.get(), input.num_tokens, config.top_k, IndexType::kInt64};
    }
    if (round.weights)
      args.topk_weights = input.num_tokens > 0 ? weights.get<float>()
                                               : static_cast<const float*>(exchange_.outputs());
    args.wait_for_counts = choices_.wait_for_counts, args.stream = stream_.get();
    cuda::Received received;
    come_together();
    if (choices_.halves) {
      require_ok(exchange_.dispatch_send(args, received), what + ", dispatch_send");
      require_ok(exchange_.dispatch_recv(stream_.get()), what + ", dispatch_recv");
    } else {
      require_ok(exchange_.dispatch(args, received), what + ", dispatch");
    }
    stream_.finish();  // the tokens are freed
    require_ok(exchange_.check(), what + ", dispatch");
    require_ok(group_.barrier(), what);
    return received;
  }

  // In the window, or in other memory.
  void combine(const RankInput& input, const CombineCase& c, const cuda::Received& received,
               std::size_t number, const std::string& what) {
    const internal::RankOutput& output = c.outputs[rank_];
    const std::vector<std::byte>& expected = c.expected[rank_].out;
    const OnCuda rows(output.expert_rows),
        out(std::vector<std::byte>(expected.size(), std::byte{0x5a}));
    const OnCuda weights(input.topk_weights), bias0(output.bias[0]), bias1(output.bias[1]);
    const void* from = rows.get();
    if (number % 2 == 1 && exchange_.config().depth > 1) {
      from = exchange_.outputs();
      internal::cuda_check(
          cudaMemcpyAsync(exchange_.outputs(), rows.get(), output.expert_rows.size(),
                          cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream_.get())),
          "filling outputs");
    }
    const cuda::CombineArgs args{
        .handle = received.handle,
        .expert_rows = {from, received.handle.num_rows(), c.hidden, c.row_type, 0},
        .topk_weights = output.weighted ? weights.get<float>() : nullptr,
        .bias = {bias0.get(), bias1.get()},
        .out = out.get(),
        .out_dtype = output.out_type,
        .stream = stream_.get()};
    come_together();
    if (choices_.halves) {
      require_ok(exchange_.combine_send(args), what + ", combine_send");
      require_ok(exchange_.combine_recv(stream_.get()), what + ", combine_recv");
    } else {
      require_ok(exchange_.combine(args), what);
    }
    stream_.finish();
    require_ok(exchange_.check(), what);
    require_ok(group_.barrier(), what);
    require_same_elements(read_device(out.get(), expected.size()), expected.data(), output.out_type,
                          what);
  }

 private:
  // No rank copies or allocates memory while kernels of another rank wait for it, because the
  // driver may let one wait for the other. Then each rank sleeps for a different time.
  void come_together() {
    require_ok(group_.barrier(), "barrier");
    std::this_thread::sleep_for(std::chrono::microseconds(random_.below(200)));
  }

  Group group_;
  int rank_;
  const Scenario& scenario_;
  PlayChoices choices_;
  TestStream stream_;
  cuda::Exchange exchange_;
  std::vector<cuda::Handle> handles_;
  Random random_;
};

// Memory of a rank that is a thread, allocated before any kernel runs: while a kernel waits for
// this rank, an allocation or a release would wait for that kernel.
struct Arena {
  std::shared_ptr<std::byte> memory = internal::device_memory(kArenaBytes);
  std::size_t used = 0;
  int alive = 0;

  std::byte* take(std::size_t bytes) {
    if (alive++ == 0) used = 0;
    std::byte* const at = memory.get() + used;
    used += (bytes + 255) / 256 * 256;
    require(used <= kArenaBytes, "the test's arena is too small");
    return at;
  }
};

// Returns to the free ones at the end of the thread.
Arena& arena_of_thread() {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<Arena>> free;
  struct Lease {
    std::unique_ptr<Arena> arena;
    Lease() {
      const std::lock_guard lock(mutex);
      if (free.empty()) free.push_back(std::make_unique<Arena>());
      arena = std::move(free.back());
      free.pop_back();
    }
    ~Lease() {
      const std::lock_guard lock(mutex);
      free.push_back(std::move(arena));
    }
  };
  static thread_local Lease lease;
  return *lease.arena;
}

}  // namespace

bool have_device() {
  return std::getenv("FERRY_EMULATED_CUDA") != nullptr || access("/dev/nvidia0", F_OK) == 0;
}

TestStream::TestStream() {
  arena_of_thread();
  cudaStream_t stream;
  internal::cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                       "making a stream");
  stream_ = stream;
}

TestStream::~TestStream() { cudaStreamDestroy(static_cast<cudaStream_t>(stream_)); }

void TestStream::finish() const {
  internal::cuda_check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream_)),
                       "waiting for a stream");
}

OnCuda::OnCuda(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  Arena* const arena = &arena_of_thread();
  memory_ = {arena->take(bytes), [arena](std::byte*) { --arena->alive; }};
  internal::cuda_check(cudaMemcpy(memory_.get(), data, bytes, cudaMemcpyHostToDevice),
                       "filling device memory");
  internal::cuda_check(cudaStreamSynchronize(nullptr), "filling device memory");
}

std::vector<std::byte> read_device(const void* data, std::size_t bytes) {
  std::vector<std::byte> read(bytes);
  if (bytes > 0)
    internal::cuda_check(cudaMemcpy(read.data(), data, bytes, cudaMemcpyDeviceToHost),
                         "reading device memory");
  return read;
}

std::vector<std::int64_t> masked_ids(const RankInput& input, int top_k) {
  std::vector<std::int64_t> ids = input.topk_ids;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!input.token_mask.empty() && input.token_mask[i / top_k] == 0) ids[i] = -1;
    if (!input.topk_mask.empty() && input.topk_mask[i] == 0) ids[i] = -1;
  }
  return ids;
}

Scenario cuda_scenario(int num_ranks, std::uint64_t seed) {
  ScenarioLimits limits{.roles = false};
  limits.adjust = strip_config;
  Scenario scenario = make_scenario(num_ranks, seed, limits);
  Random random(seed, 77);
  ExchangeConfig& config = scenario.config;
  config.row_capacity = 0;
  config.expert_capacity = config.layout == Layout::kPadded ? most_of_an_expert(scenario) : 0;
  config.max_output_row_bytes = 4 * 8192;
  for (Round& round : scenario.rounds) {
    for (RankInput& input : round.inputs) input.active_ranks.clear();
    expect_dispatch(config, round);
    for (CombineCase& combine : round.combines)
      combine = plain_combine(config, round, combine, random);
  }
  return scenario;
}

void require_received(const ExchangeConfig& config, const cuda::Received& received,
                      const RankReceived& expected, const std::string& what) {
  const std::vector<std::uint8_t> rows = defined_rows(config, expected, false);
  const std::vector<std::uint8_t> listed = defined_rows(config, expected, true);
  const std::size_t row_bytes =
      static_cast<std::size_t>(config.hidden) * element_bytes(received.dtype);
  const std::vector<std::byte> seen = read_device(received.data, expected.rows.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] == 0) continue;
    const std::vector<std::byte> one(seen.begin() + row * row_bytes,
                                     seen.begin() + (row + 1) * row_bytes);
    require_same_elements(one, &expected.rows[row * row_bytes], DataType::kBytes,
                          what + ", row " + std::to_string(row));
  }
  require_rows(received.sources, expected.sources, listed, 3, what + ", sources");
  const std::int64_t each = config.layout == Layout::kRankMajor ? config.top_k : 1;
  if (!expected.weights.empty())
    require_rows(received.weights, expected.weights, listed, each, what + ", weights");
  if (!expected.topk_ids.empty())
    require_rows(received.topk_ids, expected.topk_ids, listed, each, what + ", topk_ids");
  if (expected.scales.columns == 0) return;
  const std::vector<std::byte> scales = read_device(
      received.scales, static_cast<std::size_t>(expected.num_rows * received.scale_columns * 4));
  for (std::int64_t row = 0; row < expected.num_rows; ++row) {
    for (std::int64_t column = 0; column < expected.scales.columns && rows[row]; ++column)
      require_same_bytes(
          &scales[(row * received.scale_columns + column) * 4],
          &expected.scales.bytes[expected.scales.offset(row, column)], 4,
          what + ", scale " + std::to_string(column) + " of row " + std::to_string(row));
  }
}

void play_on_cuda(const Group& group, const Scenario& scenario, const PlayChoices& choices) {
  Player player(group, scenario, choices);
  for (std::size_t number = 0; number < scenario.rounds.size(); ++number) player.play(number);
}

}  // namespace ferry::test
