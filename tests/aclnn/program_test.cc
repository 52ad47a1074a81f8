// Programs like the examples of the documents of the operators: one process, a thread for each
// device with its context and two streams, tensors made by hand, both stages of dispatch and
// combine. Only the names of the headers are those of CANN.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_moe_distribute_combine_add_rms_norm.h"
#include "aclnnop/aclnn_moe_distribute_combine_v2.h"
#include "aclnnop/aclnn_moe_distribute_combine_v4.h"
#include "aclnnop/aclnn_moe_distribute_dispatch.h"
#include "aclnnop/aclnn_moe_distribute_dispatch_v2.h"
#include "aclnnop/aclnn_moe_distribute_dispatch_v4.h"
#include "hccl/hccl.h"

namespace {

constexpr int kTimeoutMs = 10000;
constexpr int16_t kOne = 0x3f80, kTwo = 0x4000;  // bf16

// Describes a failed call, with the message that CANN keeps.
void require(int code, const char* what) {
  if (code != 0)
    throw std::runtime_error(std::string(what) + ": " + std::to_string(code) + " " +
                             aclGetRecentErrMsg());
}

struct Shape {
  int ep = 8, tp = 2, shared = 1;
  int64_t bs = 8, h = 7168, k = 3;
  int64_t moe = 7;  // one of each rank behind the shared one
};

// A device tensor with a copy of the data of the host.
template <typename T>
class Tensor {
 public:
  Tensor(std::vector<int64_t> dims, aclDataType type, T value) {
    int64_t elements = 1;
    for (const int64_t dim : dims) elements *= dim;
    host.assign(elements, value);
    require(aclrtMalloc(&device_, elements * sizeof(T), ACL_MEM_MALLOC_HUGE_FIRST), "malloc");
    put();
    std::vector<int64_t> strides(dims.size(), 1);
    for (int i = static_cast<int>(dims.size()) - 2; i >= 0; --i)
      strides[i] = strides[i + 1] * dims[i + 1];
    tensor_ = aclCreateTensor(dims.data(), dims.size(), type, strides.data(), 0,
                              aclFormat::ACL_FORMAT_ND, dims.data(), dims.size(), device_);
  }
  ~Tensor() {
    aclDestroyTensor(tensor_);
    aclrtFree(device_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  operator aclTensor*() const { return tensor_; }
  void put() { copy(device_, host.data(), ACL_MEMCPY_HOST_TO_DEVICE); }
  void fetch() { copy(host.data(), device_, ACL_MEMCPY_DEVICE_TO_HOST); }

  std::vector<T> host;

 private:
  void copy(void* to, const void* from, aclrtMemcpyKind kind) {
    const size_t bytes = host.size() * sizeof(T);
    require(aclrtMemcpy(to, bytes, from, bytes, kind), "memcpy");
  }
  void* device_ = nullptr;
  aclTensor* tensor_ = nullptr;
};

// The objects that the main thread of such a program makes for a rank.
struct Rank {
  int ep_rank = 0, tp_rank = 0;
  HcclComm ep = nullptr, tp = nullptr;
  aclrtContext context = nullptr;
  aclrtStream dispatch = nullptr, combine = nullptr;
  char ep_name[128] = {}, tp_name[128] = {};

  void begin() {
    require(aclrtSetCurrentContext(context), "context");
    require(HcclGetCommName(ep, ep_name), "name");
    if (tp != nullptr) require(HcclGetCommName(tp, tp_name), "name");
  }
  void end() {
    HcclCommDestroy(ep);
    if (tp != nullptr) HcclCommDestroy(tp);
    aclrtDestroyStream(dispatch), aclrtDestroyStream(combine);
    aclrtDestroyContext(context);
  }
};

std::vector<Rank> make_ranks(const Shape& s) {
  const int world = s.ep * s.tp;
  std::vector<Rank> ranks(world);
  for (int device = 0; device < world; ++device) {
    Rank& rank = ranks[device];
    rank.ep_rank = device / s.tp, rank.tp_rank = device % s.tp;
    require(aclrtSetDevice(device), "device");
    require(aclrtCreateContext(&rank.context, device), "context");
    require(aclrtCreateStream(&rank.dispatch), "stream");
    require(aclrtCreateStream(&rank.combine), "stream");
  }
  for (int t = 0; t < s.tp; ++t) {
    std::vector<int32_t> devices(s.ep);
    for (int e = 0; e < s.ep; ++e) devices[e] = e * s.tp + t;
    std::vector<HcclComm> comms(s.ep);
    require(HcclCommInitAll(s.ep, devices.data(), comms.data()), "ep");
    for (int e = 0; e < s.ep; ++e) ranks[devices[e]].ep = comms[e];
  }
  for (int e = 0; s.tp > 1 && e < s.ep; ++e) {
    std::vector<int32_t> devices(s.tp);
    for (int t = 0; t < s.tp; ++t) devices[t] = e * s.tp + t;
    std::vector<HcclComm> comms(s.tp);
    require(HcclCommInitAll(s.tp, devices.data(), comms.data()), "tp");
    for (int t = 0; t < s.tp; ++t) ranks[devices[t]].tp = comms[t];
  }
  return ranks;
}

// Runs body on a thread for each rank; an exception fails the test.
template <typename Body>
void run(const Shape& shape, const Body& body) {
  require(aclInit(nullptr), "init");
  std::vector<Rank> ranks = make_ranks(shape);
  std::vector<std::string> said(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        ranks[i].begin();
        body(ranks[i]);
      } catch (const std::exception& error) {
        said[i] = error.what();
      }
      ranks[i].end();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : said) EXPECT_EQ(text, "");
  require(aclFinalize(), "finalize");
}

// The tensors of one rank. Token t of any rank goes to experts t, t + 1, t + 2 (mod moe).
struct Tensors {
  explicit Tensors(const Shape& s)
      : rows(s.tp * s.ep * s.bs),
        local(1),
        x({s.bs, s.h}, ACL_BF16, kOne),
        ids({s.bs, s.k}, ACL_INT32, 0),
        weights({s.bs, s.k}, ACL_FLOAT, 1.0F),
        expand_x({rows, s.h}, ACL_BF16, 0),
        scales({rows}, ACL_FLOAT, 0),
        assist({rows * 128}, ACL_INT32, 0),
        token_nums({local}, ACL_INT64, 0),
        ep_counts({s.tp * local * s.ep}, ACL_INT32, 0),
        tp_counts({s.tp * local}, ACL_INT32, 0),
        row_weights({rows}, ACL_FLOAT, 0) {
    for (int64_t i = 0; i < s.bs * s.k; ++i)
      ids.host[i] = static_cast<int32_t>((i / s.k + i % s.k) % s.moe);
    ids.put();
  }
  int64_t rows, local;
  Tensor<int16_t> x;
  Tensor<int32_t> ids;
  Tensor<float> weights;
  Tensor<int16_t> expand_x;
  Tensor<float> scales;
  Tensor<int32_t> assist;
  Tensor<int64_t> token_nums;
  Tensor<int32_t> ep_counts, tp_counts;
  Tensor<float> row_weights;
};

// The second stage and the wait for it.
template <typename Second>
void finish(uint64_t workspace_size, aclOpExecutor* executor, aclrtStream stream,
            const Second& second) {
  void* workspace = nullptr;
  if (workspace_size > 0)
    require(aclrtMalloc(&workspace, workspace_size, ACL_MEM_MALLOC_HUGE_FIRST), "workspace");
  require(second(workspace, workspace_size, executor, stream), "second stage");
  require(aclrtSynchronizeStreamWithTimeout(stream, kTimeoutMs), "synchronize");
  if (workspace != nullptr) aclrtFree(workspace);
}

int first_dispatch_v2(const Shape& s, const Rank& r, Tensors& t, uint64_t* size,
                      aclOpExecutor** executor) {
  return aclnnMoeDistributeDispatchV2GetWorkspaceSize(
      t.x, t.ids, nullptr, nullptr, t.weights, r.ep_name, s.ep, r.ep_rank, s.moe, r.tp_name, s.tp,
      r.tp_rank, 0, 1, s.shared, 0, s.bs * s.ep, 1, nullptr, t.expand_x, t.scales, t.assist,
      t.token_nums, t.ep_counts, t.tp_counts, t.row_weights, size, executor);
}
int first_combine_v2(const Shape& s, const Rank& r, Tensors& t, aclTensor* out, uint64_t* size,
                     aclOpExecutor** executor) {
  return aclnnMoeDistributeCombineV2GetWorkspaceSize(
      t.expand_x, t.ids, t.assist, t.ep_counts, t.weights, t.tp_counts, nullptr, nullptr, nullptr,
      nullptr, nullptr, nullptr, r.ep_name, s.ep, r.ep_rank, s.moe, r.tp_name, s.tp, r.tp_rank, 0,
      1, s.shared, s.bs * s.ep, 0, 0, 0, nullptr, out, size, executor);
}

// ep 8 and tp 2 on 16 devices, a shared expert: the pair of V2, x as the output of combine.
TEST(Program, DispatchV2AndCombineV2OfSixteenDevices) {
  const Shape s;
  run(s, [&](Rank& r) {
    Tensors t(s);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    require(first_dispatch_v2(s, r, t, &size, &executor), "first stage of dispatch");
    finish(size, executor, r.dispatch, aclnnMoeDistributeDispatchV2);
    t.token_nums.fetch();
    const int64_t rows = t.token_nums.host[0];
    // Both domains of the pair: every token of the shared expert, 8 sources with 3 or 4 others.
    EXPECT_TRUE(r.ep_rank != 0 || rows == 2 * s.ep * s.bs) << rows;
    t.expand_x.fetch();
    EXPECT_EQ(std::ranges::count(t.expand_x.host, kOne), rows * s.h);
    require(first_combine_v2(s, r, t, t.x, &size, &executor), "first stage of combine");
    finish(size, executor, r.combine, aclnnMoeDistributeCombineV2);
    t.x.fetch();
    // Three experts and the shared one, each of both tp_ranks.
    for (const int16_t value : t.x.host) ASSERT_EQ(value, 0x4100);  // 8
  });
}

TEST(Program, CombineAddRmsNorm) {
  const Shape s{.ep = 4, .tp = 1, .shared = 0, .bs = 4, .h = 64, .k = 2, .moe = 4};
  run(s, [&](Rank& r) {
    Tensors t(s);
    Tensor<int16_t> residual({s.bs, 1, s.h}, ACL_BF16, kTwo), gamma({s.h}, ACL_BF16, kTwo),
        y({s.bs, 1, s.h}, ACL_BF16, 0), out({s.bs, 1, s.h}, ACL_BF16, 0);
    Tensor<float> rstd({s.bs, 1, 1}, ACL_FLOAT, 0);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    require(first_dispatch_v2(s, r, t, &size, &executor), "dispatch");
    finish(size, executor, r.dispatch, aclnnMoeDistributeDispatchV2);
    require(aclnnMoeDistributeCombineAddRmsNormGetWorkspaceSize(
                t.expand_x, t.ids, t.assist, t.ep_counts, t.weights, residual, gamma, t.tp_counts,
                nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, r.ep_name, s.ep, r.ep_rank,
                s.moe, r.tp_name, s.tp, r.tp_rank, 0, 1, 0, s.bs * s.ep, 0, 0, 0, nullptr, 0.0F, y,
                rstd, out, &size, &executor),
            "norm");
    finish(size, executor, r.combine, aclnnMoeDistributeCombineAddRmsNorm);
    out.fetch(), y.fetch(), rstd.fetch();
    for (const int16_t value : out.host) ASSERT_EQ(value, 0x4080);  // 1 + 1 + 2
    for (const int16_t value : y.host) ASSERT_EQ(value, kTwo);      // normalised, times gamma
    for (const float value : rstd.host) ASSERT_EQ(value, 0.25F);
  });
}

// Both are queued on two streams before the program waits for one of them: they run in the order of
// the calls.
TEST(Program, StreamsKeepTheOrderOfTheCalls) {
  const Shape s{.ep = 4, .tp = 1, .shared = 0, .bs = 4, .h = 64, .k = 2, .moe = 4};
  run(s, [&](Rank& r) {
    Tensors t(s);
    Tensor<int16_t> out({s.bs, s.h}, ACL_BF16, 0);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    for (int round = 0; round < 20; ++round) {
      require(first_dispatch_v2(s, r, t, &size, &executor), "dispatch");
      require(aclnnMoeDistributeDispatchV2(nullptr, 0, executor, r.dispatch), "dispatch");
      require(first_combine_v2(s, r, t, out, &size, &executor), "combine");
      require(aclnnMoeDistributeCombineV2(nullptr, 0, executor, r.combine), "combine");
    }
    require(aclrtSynchronizeStream(r.combine), "synchronize");
    require(aclrtSynchronizeStream(r.dispatch), "synchronize");
    out.fetch();
    for (const int16_t value : out.host) ASSERT_EQ(value, kTwo);
  });
}

// Ranks that meet by root info, as processes do.
TEST(Program, RanksThatMeetByRootInfo) {
  const Shape s{.ep = 2, .tp = 1, .shared = 0, .bs = 4, .h = 64, .k = 2, .moe = 2};
  HcclRootInfo info;
  require(HcclGetRootInfo(&info), "root info");
  std::vector<std::thread> threads;
  std::vector<std::string> said(s.ep);
  for (int e = 0; e < s.ep; ++e) {
    threads.emplace_back([&, e] {
      try {
        Rank r{.ep_rank = e};
        require(aclrtCreateContext(&r.context, e), "context");
        require(aclrtCreateStream(&r.dispatch), "stream");
        require(aclrtCreateStream(&r.combine), "stream");
        require(HcclCommInitRootInfo(s.ep, &info, e, &r.ep), "join");
        r.begin();
        Tensors t(s);
        uint64_t size = 0;
        aclOpExecutor* executor = nullptr;
        require(first_dispatch_v2(s, r, t, &size, &executor), "dispatch");
        finish(size, executor, r.dispatch, aclnnMoeDistributeDispatchV2);
        require(first_combine_v2(s, r, t, t.x, &size, &executor), "combine");
        finish(size, executor, r.combine, aclnnMoeDistributeCombineV2);
        t.x.fetch();
        const auto twos = std::ranges::count(t.x.host, kTwo);
        if (twos != s.bs * s.h) throw std::runtime_error("sums that are not 2");
        r.end();
      } catch (const std::exception& error) {
        said[e] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : said) EXPECT_EQ(text, "");
}

// All ranks begin with a dispatch and no combine; then rank 3 destroys its communicator.
TEST(Program, SurvivorsGoOnWithElasticInfo) {
  const Shape s{.ep = 4, .tp = 1, .shared = 0, .bs = 4, .h = 64, .k = 2, .moe = 4};
  run(s, [&](Rank& r) {
    Tensors t(s);
    Tensor<int16_t> out({s.bs, s.h}, ACL_BF16, 0);
    Tensor<int32_t> elastic({12}, ACL_INT32, 0);
    const auto dispatch = [&](const aclTensor* info) {
      uint64_t size = 0;
      aclOpExecutor* executor = nullptr;
      require(aclnnMoeDistributeDispatchV4GetWorkspaceSize(
                  t.x, t.ids, nullptr, nullptr, nullptr, info, nullptr, r.ep_name, s.ep, r.ep_rank,
                  s.moe, "", 1, 0, 0, 1, 0, 0, s.bs * s.ep, 1, "", 0, 0, 0, t.expand_x, nullptr,
                  t.assist, t.token_nums, t.ep_counts, t.tp_counts, nullptr, &size, &executor),
              "dispatch");
      finish(size, executor, r.dispatch, aclnnMoeDistributeDispatchV4);
    };
    dispatch(nullptr);
    if (r.ep_rank == 3) return;
    elastic.host = {1, 3, 0, 3, 0, 1, 2, -1, 0, 1, 2, -1};
    elastic.put();
    for (int32_t& id : t.ids.host) id %= 3;
    t.ids.put();
    dispatch(elastic);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    require(aclnnMoeDistributeCombineV4GetWorkspaceSize(
                t.expand_x, t.ids, t.assist, t.ep_counts, t.weights, nullptr, nullptr, nullptr,
                nullptr, nullptr, nullptr, nullptr, elastic, nullptr, nullptr, nullptr, nullptr,
                nullptr, r.ep_name, s.ep, r.ep_rank, s.moe, "", 1, 0, 0, 1, 0, s.bs * s.ep, 0, 0, 0,
                "", 0, 0, 0, out, &size, &executor),
            "combine");
    finish(size, executor, r.combine, aclnnMoeDistributeCombineV4);
    out.fetch();
    for (const int16_t value : out.host) ASSERT_EQ(value, kTwo);
  });
}

}  // namespace
