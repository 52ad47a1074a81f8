// The comparison with the oracle in `ferry bench`: it counts no element of a right exchange, and
// every changed element.
#include "tools/bench/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "ferry/exchange.h"
#include "ferry/group.h"
#include "kernels/kernels.h"
#include "tools/bench/plan.h"

namespace ferry::bench {
namespace {

Options small_options(Layout layout, DataType dtype) {
  Options options;
  options.ranks = 3;
  options.tokens_per_rank = {40, 0, 7};
  options.shape.hidden = 33;
  options.shape.top_k = 3;
  options.shape.num_experts = 10;
  options.shape.layout = layout;
  options.shape.dtype = dtype;
  options.routing_text = "zipf:1";
  finish_options(options);
  return options;
}

struct RankCheck {
  Comparison received, combined, damaged_row, damaged_result, stale;
};

// One exchange of real ranks, compared as it is and after a bit was turned over.
std::vector<RankCheck> exchange_and_compare(const Plan& plan) {
  std::vector<RankCheck> checks(plan.inputs.size());
  run_threads(plan.options.ranks, [&](Group group) {
    const std::size_t rank = static_cast<std::size_t>(group.rank());
    const internal::RankInput& input = plan.inputs[rank];
    const std::size_t row_bytes = plan.options.row_bytes();
    std::vector<std::byte> tokens(static_cast<std::size_t>(input.num_tokens) * row_bytes),
        out(tokens.size());
    for (std::int64_t token = 0; token < input.num_tokens; ++token) {
      fill_token({plan.options.seed, 5, group.rank(), token}, plan.options.shape.dtype,
                 plan.options.shape.hidden,
                 tokens.data() + static_cast<std::size_t>(token) * row_bytes);
    }
    Exchange exchange(group, plan.config);
    Received received;
    const DispatchArgs arguments = {
        .tokens = {tokens.data(), input.num_tokens, plan.options.shape.hidden,
                   plan.options.shape.dtype, 0},
        .topk_ids = {input.topk_ids.data(), input.num_tokens, plan.options.shape.top_k,
                     IndexType::kInt64},
        .topk_weights = input.topk_weights.data(),
        .token_mask = nullptr,
        .topk_mask = nullptr,
        .cached = {}};
    ASSERT_TRUE(exchange.dispatch(arguments, received).ok());
    CombineArgs combine;
    combine.handle = received.handle;
    combine.expert_rows = received.rows();
    combine.topk_weights =
        plan.options.shape.layout == Layout::kRankMajor ? nullptr : input.topk_weights.data();
    combine.out = out.data();
    combine.out_dtype = plan.options.shape.dtype;
    ASSERT_TRUE(exchange.combine(combine).ok());
    ASSERT_TRUE(group.barrier().ok());  // all have read before anybody damages rows
    RankCheck& check = checks[rank];
    check.received = compare_received(plan, rank, 5, received);
    check.combined = compare_combined(plan, rank, 5, out.data());
    check.stale = compare_received(plan, rank, 4, received);
    if (received.num_rows > 0) static_cast<std::byte*>(received.data)[1] ^= std::byte{1};
    if (!out.empty()) out.back() ^= std::byte{1};
    check.damaged_row = compare_received(plan, rank, 5, received);
    check.damaged_result = compare_combined(plan, rank, 5, out.data());
  });
  return checks;
}

TEST(BenchCheck, FindsNothingInARightExchangeAndEveryChangedElement) {
  for (const Layout layout : {Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded}) {
    for (const DataType dtype : {DataType::kBf16, DataType::kFp16, DataType::kFp32}) {
      const Plan plan = make_plan(small_options(layout, dtype), 0);
      const std::vector<RankCheck> checks = exchange_and_compare(plan);
      std::uint64_t compared = 0;
      for (std::size_t rank = 0; rank < checks.size(); ++rank) {
        SCOPED_TRACE(testing::Message()
                     << layout_name(layout) << " " << data_type_name(dtype) << " rank " << rank);
        const RankCheck& check = checks[rank];
        EXPECT_EQ(check.received.wrong, 0u);
        EXPECT_EQ(check.combined.wrong, 0u);
        EXPECT_EQ(check.combined.compared,
                  static_cast<std::uint64_t>(plan.inputs[rank].num_tokens) * 33);
        EXPECT_EQ(check.damaged_row.wrong, plan.expected[rank].row_valid.empty() ? 0u : 1u);
        EXPECT_EQ(check.damaged_result.wrong, plan.inputs[rank].num_tokens == 0 ? 0u : 1u);
        compared += check.received.compared;
      }
      EXPECT_GE(compared, static_cast<std::uint64_t>(plan.num_rows) * 33);
      EXPECT_GT(checks[0].stale.wrong, 0u) << "contents of another salt must not pass";
    }
  }
}

TEST(BenchPlan, CountsRowsAsTheLayoutReceivesThem) {
  const Plan by_expert = make_plan(small_options(Layout::kExpertMajor, DataType::kBf16), 0);
  EXPECT_EQ(by_expert.num_tokens, 47);
  EXPECT_EQ(by_expert.num_rows, 47 * 3);
  const Plan padded = make_plan(small_options(Layout::kPadded, DataType::kBf16), 0);
  EXPECT_EQ(padded.num_rows, 47 * 3);
  const Plan by_rank = make_plan(small_options(Layout::kRankMajor, DataType::kBf16), 0);
  EXPECT_LT(by_rank.num_rows, 47 * 3);
  EXPECT_GE(by_rank.num_rows, 47);
  EXPECT_LE(by_expert.remote_rows, by_expert.num_rows);
  EXPECT_GE(by_expert.imbalance, 1.0);
}

TEST(BenchPlan, AbsurdSizesAreRefusedBeforeTheyAreMade) {
  Options options = small_options(Layout::kExpertMajor, DataType::kFp32);
  options.tokens_per_rank.clear();
  options.shape.hidden = 1 << 20;
  EXPECT_THROW(make_plan(options, 1 << 24), std::invalid_argument);
}

TEST(BenchPlan, TokenContentsAreFiniteAndDifferByName) {
  for (const DataType dtype : {DataType::kBf16, DataType::kFp16, DataType::kFp32}) {
    std::vector<std::byte> a(33 * element_bytes(dtype)), b(a.size());
    fill_token({1, 0, 2, 3}, dtype, 33, a.data());
    fill_token({1, 0, 2, 3}, dtype, 33, b.data());
    EXPECT_EQ(a, b);
    for (std::size_t i = 0; i < 33; ++i) {
      const float value = internal::to_float(&a[i * element_bytes(dtype)], dtype);
      EXPECT_GE(std::abs(value), 0.125f);
      EXPECT_LT(std::abs(value), 2.0f);
    }
    for (const TokenName& other : {TokenName{2, 0, 2, 3}, TokenName{1, 1, 2, 3},
                                   TokenName{1, 0, 3, 3}, TokenName{1, 0, 2, 4}}) {
      fill_token(other, dtype, 33, b.data());
      EXPECT_NE(a, b);
    }
  }
}

}  // namespace
}  // namespace ferry::bench
