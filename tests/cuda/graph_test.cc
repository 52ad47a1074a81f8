// Dispatch and combine in a CUDA graph: every replay of a captured graph gives the results of the
// oracle, for the tokens at the time of the replay.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "cuda/device_case.h"
#include "cuda/memory.h"
#include "exchange/frame.h"

namespace ferry::test {
namespace {

using internal::cuda_check;

// A graph of the kernels that `issue` puts on a stream.
class Graph {
 public:
  template <typename Issue>
  Graph(const TestStream& stream, const Issue& issue)
      : stream_(static_cast<cudaStream_t>(stream.get())) {
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
               "beginning a graph");
    issue();
    cuda_check(cudaStreamEndCapture(stream_, &graph), "ending a graph");
    cuda_check(cudaGraphInstantiate(&executable_, graph, 0), "making a graph");
    cudaGraphDestroy(graph);
    cuda_check(cudaGraphUpload(executable_, stream_), "preparing a graph");
    cuda_check(cudaStreamSynchronize(stream_), "preparing a graph");
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay() const { cuda_check(cudaGraphLaunch(executable_, stream_), "launching a graph"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

ExchangeConfig config_of(Layout layout) {
  ExchangeConfig config{
      .max_tokens = 32, .hidden = 128, .num_experts = 8, .top_k = 4, .layout = layout};
  if (layout == Layout::kPadded) config.expert_capacity = 4 * 32;
  return config;
}

// Every replay has other tokens, and with `cached` the routing of the first round.
void replay(Group group, const Scenario& scenario, bool cached) {
  const ExchangeConfig& config = scenario.config;
  const int rank = group.rank();
  TestStream stream;
  cuda::Exchange exchange(group, config, 0);
  const std::size_t bytes = scenario.rounds[0].inputs[rank].tokens.size();
  const OnCuda tokens(std::vector(bytes, std::byte{1})), out(std::vector(bytes, std::byte{1}));
  const OnCuda ids(scenario.rounds[0].inputs[rank].topk_ids),
      weights(scenario.rounds[0].inputs[rank].topk_weights);
  cuda::DispatchArgs args{
      .tokens = {tokens.get(), config.max_tokens, config.hidden, config.dtype, 0},
      .topk_ids = {ids.get(), config.max_tokens, config.top_k, IndexType::kInt64},
      .topk_weights = weights.get<float>(),
      .wait_for_counts = false,
      .stream = stream.get()};
  cuda::Received received;
  require_ok(group.barrier(), "barrier");
  if (cached) {
    require_ok(exchange.dispatch(args, received), "the first dispatch");
    require_ok(exchange.finish(), "the first dispatch");
    args.cached = received.handle, args.topk_ids = {};
  }
  require_ok(group.barrier(), "barrier");
  const Graph graph(stream, [&] {
    require_ok(exchange.dispatch(args, received), "dispatch");
    require_ok(exchange.combine({.handle = received.handle,
                                 .expert_rows = received.rows(),
                                 .out = out.get(),
                                 .stream = stream.get()}),
               "combine");
  });
  for (const Round& round : scenario.rounds) {
    const internal::RankInput& input = round.inputs[rank];
    cuda_check(cudaMemcpy(tokens.get(), input.tokens.data(), bytes, cudaMemcpyHostToDevice),
               "other tokens");
    if (!cached)
      cuda_check(cudaMemcpy(ids.get(), input.topk_ids.data(), input.topk_ids.size() * 8,
                            cudaMemcpyHostToDevice),
                 "other ids");
    cuda_check(cudaMemcpy(weights.get(), input.topk_weights.data(), input.topk_weights.size() * 4,
                          cudaMemcpyHostToDevice),
               "other weights");
    require_ok(group.barrier(), "barrier");
    graph.replay();
    stream.finish();
    require_ok(group.barrier(), "barrier");
    require_ok(exchange.check(), "a replay");
    require_received(exchange.config(), received, round.expected[rank], "a replay");
    const std::vector<std::byte> expected = round.combines[0].expected[rank].out;
    require_same_bytes(read_device(out.get(), bytes).data(), expected.data(), bytes,
                       "a replay's combine");
  }
}

// Each combine returns the received rows, without weights.
Scenario echo_scenario(Layout layout, bool cached) {
  Scenario scenario = plain_scenario(4, config_of(layout), 5, 11);
  for (Round& round : scenario.rounds) {
    for (std::size_t rank = 0; rank < round.inputs.size() && cached; ++rank)
      round.inputs[rank].topk_ids = scenario.rounds[0].inputs[rank].topk_ids;
    expect_dispatch(scenario.config, round);
    CombineCase& combine = round.combines[0];
    combine = CombineCase{scenario.config.hidden, scenario.config.dtype, {}, {}};
    for (const internal::RankReceived& received : round.expected)
      combine.outputs.push_back({.expert_rows = received.rows, .out_type = scenario.config.dtype});
    expect_combine(scenario.config, round, combine);
  }
  return scenario;
}

TEST(CudaGraph, ReplaysAPaddedPair) {
  FERRY_NEED_DEVICE();
  const Scenario scenario = echo_scenario(Layout::kPadded, false);
  run_ranks(Mode::kThreads, 4, [&](const Group& group) { replay(group, scenario, false); });
}

TEST(CudaGraph, ReplaysACachedDispatch) {
  FERRY_NEED_DEVICE();
  const Scenario scenario = echo_scenario(Layout::kExpertMajor, true);
  run_ranks(Mode::kThreads, 4, [&](const Group& group) { replay(group, scenario, true); });
}

TEST(CudaGraph, CannotWaitForCounts) {
  FERRY_NEED_DEVICE();
  run_ranks(Mode::kThreads, 1, [](const Group& group) {
    TestStream stream;
    cuda::Exchange exchange(group, config_of(Layout::kPadded), 0);
    const OnCuda tokens(std::vector<std::byte>(32 * 128 * 2)),
        ids(std::vector<std::int64_t>(32 * 4));
    const cuda::DispatchArgs args{.tokens = {tokens.get(), 32, 128, DataType::kBf16, 0},
                                  .topk_ids = {ids.get(), 32, 4, IndexType::kInt64},
                                  .stream = stream.get()};
    cuda::Received received;
    const Graph graph(stream, [&] {
      require_status(exchange.dispatch(args, received), Code::kInvalidArgument,
                     {"captures a graph", "wait_for_counts"}, "capture");
    });
    require_ok(exchange.dispatch(args, received), "after the capture");
  });
}

}  // namespace
}  // namespace ferry::test
