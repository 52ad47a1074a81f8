// Failures on a device: all ranks that are concerned get an error that names the fault, within the
// deadline. After a refused call the exchange stays usable.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "cuda/device_case.h"
#include "cuda/memory.h"
#include "exchange/frame.h"

namespace ferry::test {
namespace {

constexpr std::int64_t kTokens = 16, kHidden = 64;

ExchangeConfig small_config() {
  return {.max_tokens = kTokens, .hidden = kHidden, .num_experts = 4, .top_k = 2};
}

// A rank with its tokens, and the calls that all ranks make.
class Caller {
 public:
  explicit Caller(const Group& group, const ExchangeConfig& config = small_config())
      : exchange(group, config, 0) {
    std::fill_n(reinterpret_cast<std::uint16_t*>(tokens_.get()), kTokens * kHidden, 0x3f80);
  }

  cuda::DispatchArgs args(std::int64_t id) {
    auto* ids = reinterpret_cast<std::int64_t*>(ids_.get());
    for (std::int64_t token = 0; token < kTokens; ++token)
      ids[2 * token] = 0, ids[2 * token + 1] = 1;
    ids[2 * 5 + 1] = id;
    return {.tokens = {tokens_.get(), kTokens, kHidden, DataType::kBf16, 0},
            .topk_ids = {ids, kTokens, 2, IndexType::kInt64},
            .stream = stream.get()};
  }
  Status dispatch(std::int64_t id = 1) { return exchange.dispatch(args(id), received); }
  Status combine() { return combine(received.rows()); }
  Status combine(const Rows& rows) {
    return exchange.combine({.handle = received.handle,
                             .expert_rows = rows,
                             .out = out_.get(),
                             .stream = stream.get()});
  }
  // A dispatch and a combine of ones: each token has two.
  void require_works(const std::string& what) {
    require_ok(dispatch(), what + ", dispatch");
    require_ok(combine(), what + ", combine");
    require_ok(exchange.finish(), what);
    const std::byte* out = out_.get();
    require(out[0] == std::byte{0x00} && out[1] == std::byte{0x40},
            what + ": the sum of two ones is not 2");
  }

  TestStream stream;

 private:
  // Host memory that kernels read and write: no copy waits for kernels that wait for this rank.
  static constexpr std::size_t kBytes = kTokens * kHidden * 2;
  std::shared_ptr<std::byte> tokens_ = internal::mapped_memory(kBytes),
                             out_ = internal::mapped_memory(kBytes),
                             ids_ = internal::mapped_memory(kTokens * 2 * sizeof(std::int64_t));

 public:
  cuda::Exchange exchange;
  cuda::Received received;
};

void run(int num_ranks, const Body& body,
         std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
  run_ranks(Mode::kThreads, num_ranks, body, "", {.deadline = deadline});
}

TEST(CudaFaults, BadIdIsNamedAndAllGoOn) {
  FERRY_NEED_DEVICE();
  run(3, [](const Group& group) {
    Caller caller(group);
    const bool bad = group.rank() == 1;
    const Status status = caller.dispatch(bad ? 4 : 1);
    require_status(status, bad ? Code::kInvalidArgument : Code::kPeerRejected,
                   {"token 5, k 1", "expert id 4", "[-1, 4)"}, "bad id");
    require(status.culprit() == 1, "the culprit is rank " + std::to_string(status.culprit()));
    caller.require_works("after a bad id");
  });
}

TEST(CudaFaults, RefusedArgumentsAreToldToAll) {
  FERRY_NEED_DEVICE();
  run(2, [](const Group& group) {
    Caller caller(group);
    cuda::DispatchArgs args = caller.args(1);
    if (group.rank() == 0) args.tokens.hidden = 63;
    Status status = caller.exchange.dispatch(args, caller.received);
    if (group.rank() == 0) require_status(status, Code::kInvalidArgument, {"63", "64"}, "a width");
    if (group.rank() == 1) require_status(status, Code::kPeerRejected, {"rank 0"}, "a width");
    require_ok(caller.dispatch(), "the next dispatch");
    Rows rows = caller.received.rows();
    rows.hidden = group.rank() == 1 ? 65 : 64;
    status = caller.combine(rows);
    if (group.rank() == 1)
      require_status(status, Code::kInvalidArgument, {"65", "max_output_row_bytes"}, "a combine");
    status = caller.exchange.finish();
    if (group.rank() == 0)
      require_status(status, Code::kPeerRejected, {"rank 1", "combine"}, "a combine");
    caller.require_works("after refused arguments");
  });
}

TEST(CudaFaults, RanksThatRefuseTheSameCallHearOfTheirOwnRefusalOnly) {
  FERRY_NEED_DEVICE();
  run(3, [](const Group& group) {
    Caller caller(group);
    const bool bad = group.rank() < 2;
    cuda::DispatchArgs args = caller.args(1);
    if (bad) args.tokens.hidden = 63;
    const Code code = bad ? Code::kInvalidArgument : Code::kPeerRejected;
    require_status(caller.exchange.dispatch(args, caller.received), code, {}, "a dispatch");
    require_ok(caller.exchange.finish(), "after a refused dispatch");
    require_ok(caller.dispatch(), "the next dispatch");
    Rows rows = caller.received.rows();
    if (bad) rows.hidden = 65;
    const Status status = caller.combine(rows);
    if (bad) require_status(status, Code::kInvalidArgument, {"65"}, "a combine");
    const Status later = caller.exchange.finish();
    if (bad) require_ok(later, "after a refused combine");
    if (!bad) require_status(later, Code::kPeerRejected, {"rank 0"}, "a combine of others");
    caller.require_works("after refused calls");
  });
}

TEST(CudaFaults, FirstHalfThatIsRefusedIsTheWholeOperation) {
  FERRY_NEED_DEVICE();
  run(2, [](const Group& group) {
    Caller caller(group);
    const bool bad = group.rank() == 1;
    const Status status = caller.exchange.dispatch_send(caller.args(bad ? 9 : 1), caller.received);
    require_status(status, bad ? Code::kInvalidArgument : Code::kPeerRejected, {"expert id 9"},
                   "a half");
    require_status(caller.exchange.dispatch_recv(caller.stream.get()), Code::kInvalidArgument,
                   {"without a dispatch_send"}, "the other half");
    caller.require_works("after a refused half");
    cuda::CombineArgs combine{.handle = caller.received.handle, .stream = caller.stream.get()};
    combine.expert_rows.hidden = 0;
    require_status(caller.exchange.combine_send(combine), Code::kInvalidArgument, {"0 elements"},
                   "a half");
    require_status(caller.exchange.combine_recv(caller.stream.get()), Code::kInvalidArgument,
                   {"without a combine_send"}, "the other half");
    static_cast<void>(caller.exchange.finish());  // the other rank's refusal
    caller.require_works("after a refused half of a combine");
  });
}

TEST(CudaFaults, MemoryOfTheHostIsNamed) {
  FERRY_NEED_DEVICE();
  run(1, [](const Group& group) {
    Caller caller(group);
    cuda::DispatchArgs args = caller.args(1);
    std::vector<std::uint16_t> here(kTokens * kHidden);
    args.tokens.data = here.data();
    require_status(caller.exchange.dispatch(args, caller.received), Code::kInvalidArgument,
                   {"tokens", "not memory that a device can use"}, "host memory");
    caller.require_works("after host memory");
  });
}

TEST(CudaFaults, TooManyRowsAreToldToAll) {
  FERRY_NEED_DEVICE();
  run(2, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.row_capacity = 40;
    Caller caller(group, config);
    const Status status = caller.dispatch();
    require_status(status, Code::kCapacity, {"rank 0 would receive 64 rows", "row_capacity is 40"},
                   "capacity");
  });
}

TEST(CudaFaults, DifferentWidthsAreAMismatch) {
  FERRY_NEED_DEVICE();
  run(2, [](const Group& group) {
    Caller caller(group);
    require_ok(caller.dispatch(), "dispatch");
    Rows rows = caller.received.rows();
    if (group.rank() == 1) rows.hidden = 32;
    require_ok(caller.combine(rows), "combine");
    require_status(caller.exchange.finish(), Code::kMismatch, {"hidden 64 and 32"}, "widths");
    caller.require_works("after a mismatch");
  });
}

TEST(CudaFaults, RankThatNeverComesIsNamedAtTheDeadline) {
  FERRY_NEED_DEVICE();
  run(
      3,
      [](const Group& group) {
        Caller caller(group);
        if (group.rank() == 2) return std::this_thread::sleep_for(std::chrono::seconds(2));
        const std::int64_t begin = internal::now_ns();
        const Status status = caller.dispatch();
        const double seconds = 1e-9 * static_cast<double>(internal::now_ns() - begin);
        require_status(status, Code::kTimeout, {"counts of rank 2", "not issued"}, "a late rank");
        require(seconds > 0.3 && seconds < 3, "the wait took " + std::to_string(seconds) + " s");
        require_status(caller.dispatch(), Code::kBroken, {"broken"}, "the next call");
      },
      std::chrono::milliseconds(500));
}

TEST(CudaFaults, RankThatLeavesIsNamedAtOnce) {
  FERRY_NEED_DEVICE();
  run(2, [](const Group& group) {
    auto caller = std::make_unique<Caller>(group);
    caller->require_works("before");
    if (group.rank() == 1) return caller.reset();
    const std::int64_t begin = internal::now_ns();
    require_status(caller->dispatch(), Code::kPeerLost, {"rank 1"}, "a rank that left");
    require(internal::now_ns() - begin < 5'000'000'000, "it took more than 5 s");
  });
}

TEST(CudaFaults, MemoryThatIsRefusedIsToldToAll) {
  FERRY_NEED_DEVICE();
  run(2, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.max_tokens = 1 << 24, config.hidden = 1 << 16;
    const Status status = error_of([&] { const cuda::Exchange exchange(group, config, 0); });
    require(status.code() == Code::kCapacity || status.code() == Code::kPeerRejected,
            status.message());
    require(contains(status.message(), "bytes of device memory"), status.message());
    Caller(group).require_works("after memory was refused");
  });
}

TEST(CudaFaults, RanksThatDisagreeAreToldHow) {
  FERRY_NEED_DEVICE();
  run(2, [](const Group& group) {
    Status status = error_of([&] {
      if (group.rank() == 0) const cuda::Exchange exchange(group, small_config(), 0);
      if (group.rank() == 1) const Exchange exchange(group, small_config());
    });
    require_status(status, Code::kMismatch, {"memory is of CUDA devices"}, "host and device");
    status = error_of(
        [&] { const cuda::Exchange exchange(group, small_config(), group.rank() == 0 ? 0 : 99); });
    require(contains(status.message(), "device is 99"), status.message());
    ExchangeConfig config = small_config();
    config.wire = Wire::kInt8;
    status = error_of([&] { const cuda::Exchange exchange(group, config, 0); });
    require_status(status, status.code(), {"wire is int8"}, "a wire");
    Caller(group).require_works("after disagreement");
  });
}

TEST(CudaProcesses, KilledRankIsNamedWithinASecond) {
  FERRY_NEED_DEVICE();
  const std::vector<RankEnd> ends = run_ranks_to_end(
      Mode::kProcesses, 2, {.deadline = std::chrono::seconds(20)}, [](const Group& group) {
        Caller caller(group);
        caller.require_works("before");
        if (group.rank() == 1) raise(SIGKILL);
        const std::int64_t begin = internal::now_ns();
        require_status(caller.dispatch(), Code::kPeerLost, {"rank 1"}, "a killed rank");
        require(internal::now_ns() - begin < 1'000'000'000, "it took more than 1 s");
      });
  EXPECT_EQ(ends[0].failure, "");
  EXPECT_EQ(ends[1].signal, SIGKILL);
}

}  // namespace
}  // namespace ferry::test
