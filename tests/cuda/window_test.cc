// The settings that CUDA ranks accept, the offsets in a window, and the messages of reports. Runs
// on every machine.
#include "cuda/window.h"

#include <gtest/gtest.h>

#include "cuda/report.h"
#include "exchange/frame.h"
#include "routing/active_set.h"

namespace ferry::internal {
namespace {

ExchangeConfig config_of(Layout layout) {
  ExchangeConfig config{
      .max_tokens = 16, .hidden = 100, .num_experts = 7, .top_k = 2, .layout = layout};
  if (layout == Layout::kPadded) config.expert_capacity = 20;
  return config;
}

CudaShape shape_of(const ExchangeConfig& config, int rank) {
  return cuda_shape(config, ActiveSet(config, 3, rank, {}).map, rank);
}

TEST(CudaWindow, PartsFollowEachOtherAndHoldWhatTheyMust) {
  for (const Layout layout : {Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded}) {
    ExchangeConfig config = config_of(layout);
    config.wire = Wire::kFp8;
    config = cuda_config(config, 3);
    const CudaShape shape = shape_of(config, 1);
    const CudaWindow window = cuda_window(config, shape);
    const std::int64_t rows = shape.row_capacity;
    EXPECT_EQ(rows, layout == Layout::kRankMajor ? 48 : layout == Layout::kPadded ? 3 * 20 : 96);
    EXPECT_EQ(shape.scale_columns, 1);
    EXPECT_GE(window.buffer.scales - window.buffer.rows, static_cast<std::size_t>(rows * 100));
    EXPECT_GE(window.buffer.sources - window.buffer.scales, static_cast<std::size_t>(rows * 4));
    EXPECT_GE(window.buffer.bytes, window.buffer.weights + rows * 4);
    EXPECT_GE(window.first_output, window.first_buffer + config.depth * window.buffer.bytes);
    EXPECT_GE(window.output_bytes, static_cast<std::size_t>(rows * 200));
    EXPECT_EQ(window.bytes, window.first_output + config.depth * window.output_bytes);
    for (const std::size_t at :
         {window.counts_flags, window.buffer.rows, window.first_buffer, window.first_output})
      EXPECT_EQ(at % 256, 0);
  }
}

TEST(CudaWindow, WhatIsNotForCudaIsNamed) {
  const auto refused = [](const auto& change, const std::string& part) {
    ExchangeConfig config = config_of(Layout::kExpertMajor);
    change(config);
    const Status status = test::error_of([&] { cuda_config(config, 2); });
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(test::contains(status.message(), part)) << status.message();
  };
  refused([](ExchangeConfig& c) { c.wire = Wire::kInt8; }, "wire is int8");
  refused([](ExchangeConfig& c) { c.combine_wire = CombineWire::kLogfmt10; },
          "combine_wire is logfmt10");
  refused([](ExchangeConfig& c) { c.tp_size = 2; }, "tp_size is 2");
  refused([](ExchangeConfig& c) { c.special.copy = 3; }, "special experts is 3");
  refused([](ExchangeConfig& c) { c.scale_bytes = 8; }, "scale_bytes is 8");
  refused([](ExchangeConfig& c) { c.top_k = 33; }, "top_k is 33");
}

TEST(CudaReport, NamesValuesLimitsAndRanks) {
  const ExchangeConfig config = cuda_config(config_of(Layout::kPadded), 3);
  const CudaShape shape = shape_of(config, 0);
  const auto text = [&](CudaReport report, Code code) {
    report.code = static_cast<std::int32_t>(code);
    const Status status = status_of(report, shape, 1'500'000'000);
    EXPECT_EQ(status.code(), code);
    return status.message();
  };
  EXPECT_EQ(text({.number = 4, .culprit = 2, .entry = 11, .value = 9}, Code::kPeerRejected),
            "dispatch 4 on the device: rank 2 rejected its call: token 5, k 1: expert id 9 is "
            "outside [-1, 7)");
  EXPECT_EQ(
      text({.number = 4, .culprit = 1, .rows = 30, .most = 20}, Code::kCapacity),
      "dispatch 4 on the device: an expert of rank 1 would receive 30 rows, expert_capacity is 20");
  EXPECT_EQ(text({.number = 6,
                  .culprit = 1,
                  .combine = 1,
                  .phase = CudaPhase::kOutputs,
                  .expected = 6,
                  .seen = 5},
                 Code::kTimeout),
            "combine 6 on the device: gave up after 1.5 s waiting for outputs of rank 1 (its flag "
            "is 5, expected 6)");
}

}  // namespace
}  // namespace ferry::internal
