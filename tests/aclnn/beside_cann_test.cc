// A program that has CANN and links libferry: it calls CANN's functions, and ferry works in the
// same process.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "aclnn/fake_ascendcl.h"
#include "ferry/exchange.h"

namespace {

TEST(BesideCann, NamesOfCannStayThoseOfCann) {
  EXPECT_EQ(aclInit(nullptr), 1001);
  EXPECT_EQ(aclrtGetDeviceCount(nullptr), 1002);
  EXPECT_EQ(HcclGetRootInfo(nullptr), 1003);
  EXPECT_EQ(aclnnMoeDistributeDispatchV4(nullptr, 0, nullptr, nullptr), 1004);
}

TEST(BesideCann, DispatchAndCombineWork) {
  constexpr int kHidden = 4;
  constexpr auto kType = ferry::DataType::kFp32;
  ferry::run_threads(2, [](ferry::Group group) {
    const std::vector<float> tokens(kHidden, 1.0f + static_cast<float>(group.rank()));
    const std::vector<std::int64_t> experts = {0, 1};
    const std::vector<float> weights = {0.5f, 0.25f};
    std::vector<float> out(kHidden);
    ferry::Exchange exchange(group, {1, kHidden, 2, 2, kType});
    ferry::Received received;
    ferry::require_ok(exchange.dispatch(
        {.tokens = {tokens.data(), 1, kHidden, kType}, .topk_ids = {experts.data(), 1, 2}},
        received));
    ferry::require_ok(exchange.combine({.handle = received.handle,
                                        .expert_rows = received.rows(),
                                        .topk_weights = weights.data(),
                                        .out = out.data(),
                                        .out_dtype = kType}));
    EXPECT_EQ(out[0], 0.75f * tokens[0]);
  });
}

}  // namespace
