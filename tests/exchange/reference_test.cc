// The oracle against results worked out by hand, so that the engine and the oracle cannot be wrong
// together.
#include "exchange/reference.h"

#include <gtest/gtest.h>

#include <cstring>

namespace ferry::internal {
namespace {

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;
using Ints = std::vector<std::int32_t>;

// Two ranks, three experts: 0 and 1 on rank 0, 2 on rank 1. Rank 0 has two tokens of one element,
// rank 1 has one.
ExchangeConfig small_config(Layout layout) {
  ExchangeConfig config;
  config.max_tokens = 2;
  config.hidden = 1;
  config.num_experts = 3;
  config.top_k = 2;
  config.dtype = DataType::kFp32;
  config.layout = layout;
  return config;
}

std::vector<RankInput> small_inputs() {
  return {{2, bytes_of({10, 20}), {2, 0, 1, 0}, {0.5, 0.25, 2, 4}, {}, {}},
          {1, bytes_of({30}), {0, -1}, {8, 16}, {}, {}}};
}

TEST(Reference, ExpertMajorIsOrderedByExpertSourceToken) {
  ExchangeConfig config = small_config(Layout::kExpertMajor);
  config.expert_alignment = 2;
  const std::vector<RankReceived> received = reference_dispatch(config, small_inputs());
  // Expert 0: tokens (0,0), (0,1), (1,0) and a gap; expert 1: token (0,1) and a gap.
  EXPECT_EQ(floats_of(received[0].rows), (Floats{10, 20, 30, 0, 20, 0}));
  EXPECT_EQ(received[0].sources,
            (Ints{0, 0, 1, 0, 1, 1, 1, 0, 0, -1, -1, -1, 0, 1, 0, -1, -1, -1}));
  EXPECT_EQ(received[0].weights, (Floats{0.25, 4, 8, 0, 2, 0}));
  EXPECT_EQ(received[0].tokens_per_expert, (Ids{3, 1}));
  EXPECT_EQ(received[0].aligned_tokens_per_expert, (Ids{4, 2}));
  EXPECT_EQ(received[0].expert_offsets, (Ids{0, 4, 6}));
  EXPECT_EQ(received[0].running_counts, (Ids{2, 3, 4, 4}));
  EXPECT_EQ(floats_of(received[1].rows), (Floats{10, 0}));
  EXPECT_EQ(received[1].running_counts, (Ids{1, 1}));
}

TEST(Reference, PaddedGivesEachExpertItsCapacity) {
  ExchangeConfig config = small_config(Layout::kPadded);
  config.expert_capacity = 3;
  const std::vector<RankReceived> received = reference_dispatch(config, small_inputs());
  EXPECT_EQ(floats_of(received[0].rows), (Floats{10, 20, 30, 20, 0, 0}));
  EXPECT_EQ(received[0].expert_offsets, (Ids{0, 3, 6}));
  EXPECT_EQ(received[0].row_valid, (std::vector<std::uint8_t>{1, 1, 1, 1, 0, 0}));
}

TEST(Reference, RankMajorHasOneRowForTwoExpertsOfOneRankAndKeepsBothWeights) {
  const std::vector<RankReceived> received =
      reference_dispatch(small_config(Layout::kRankMajor), small_inputs());
  EXPECT_EQ(floats_of(received[0].rows), (Floats{10, 20, 30}));
  EXPECT_EQ(received[0].sources, (Ints{0, 0, 1, 0, 1, 0, 1, 0, 0}));
  EXPECT_EQ(received[0].topk_ids, (Ints{-1, 0, 1, 0, 0, -1}));
  EXPECT_EQ(received[0].weights, (Floats{0, 0.25, 2, 4, 8, 0}));
  EXPECT_EQ(received[0].running_rows_per_rank, (Ids{2, 3}));
  EXPECT_EQ(received[0].running_counts, (Ids{2, 3, 4, 4}));
  EXPECT_EQ(received[1].topk_ids, (Ints{0, -1}));
}

TEST(Reference, MasksAndDuplicates) {
  std::vector<RankInput> inputs = small_inputs();
  inputs[0].topk_ids = {2, 2, 1, 0};
  inputs[0].topk_mask = {1, 1, 0, 1};
  inputs[1].token_mask = {0};
  const std::vector<RankReceived> by_expert =
      reference_dispatch(small_config(Layout::kExpertMajor), inputs);
  EXPECT_EQ(by_expert[1].sources, (Ints{0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(by_expert[0].sources, (Ints{0, 1, 1}));
  const std::vector<RankReceived> by_rank =
      reference_dispatch(small_config(Layout::kRankMajor), inputs);
  EXPECT_EQ(by_rank[1].topk_ids, (Ints{0, 0}));
  EXPECT_EQ(by_rank[1].weights, (Floats{0.5, 0.25}));
}

TEST(Reference, PlacementOfTheCallerNumbersExpertsByAscendingId) {
  ExchangeConfig config = small_config(Layout::kRankMajor);
  config.expert_rank = {1, 0, 1};
  const std::vector<RankReceived> received = reference_dispatch(config, small_inputs());
  EXPECT_EQ(received[1].topk_ids, (Ints{1, 0, -1, 0, 0, -1}));
  EXPECT_EQ(received[0].topk_ids, (Ints{0, -1}));
}

TEST(Reference, CombineWeighsInOrderOfKAndAddsBothBiases) {
  const ExchangeConfig config = small_config(Layout::kExpertMajor);
  std::vector<RankOutput> outputs(2);
  outputs[0].expert_rows = bytes_of({1, 2, 4, 8});  // (0,0)k1, (0,1)k1, (1,0)k0, (0,1)k0
  outputs[1].expert_rows = bytes_of({16});          // (0,0)k0
  outputs[0].row_weights = {0.1F, 0.2F, 0.3F, 0.4F};
  outputs[1].row_weights = {0.5F};
  outputs[0].weighted = true;
  outputs[0].bias[0] = bytes_of({100, 200});
  outputs[0].bias[1] = bytes_of({1000, 2000});
  for (RankOutput& output : outputs) output.out_type = DataType::kFp32;
  const std::vector<RankCombined> combined =
      reference_combine(config, small_inputs(), outputs, 1, DataType::kFp32);
  EXPECT_EQ(floats_of(combined[0].out),
            (Floats{1100 + 0.5F * 16 + 0.25F * 1, 2200 + 2 * 8 + 4 * 2}));
  EXPECT_EQ(floats_of(combined[1].out), (Floats{4}));
  EXPECT_EQ(combined[0].out_topk_weights, (Floats{0.5F, 0.1F, 0.4F, 0.2F}));
  EXPECT_EQ(combined[1].out_topk_weights, (Floats{0.3F, 0}));
}

TEST(Reference, CombineRoundsTheProductBeforeItAdds) {
  ExchangeConfig config = small_config(Layout::kExpertMajor);
  config.num_experts = 1;
  config.top_k = 1;
  const float a = 1.0F + 0x1p-12F;
  const std::vector<RankInput> inputs = {{1, bytes_of({0}), {0}, {a}, {}, {}}};
  std::vector<RankOutput> outputs(1);
  outputs[0] = {bytes_of({a}), {}, true, {bytes_of({-1.0F}), {}}, DataType::kFp32};
  const std::vector<RankCombined> combined =
      reference_combine(config, inputs, outputs, 1, DataType::kFp32);
  // a * a = 1 + 2^-11 + 2^-24; the last term is lost before -1 is added.
  EXPECT_EQ(floats_of(combined[0].out), (Floats{0x1p-11F}));
}

TEST(Reference, RankMajorCombineAddsRanksAscending) {
  const ExchangeConfig config = small_config(Layout::kRankMajor);
  std::vector<RankOutput> outputs(2);
  outputs[0].expert_rows = bytes_of({1, 2, 4});
  outputs[1].expert_rows = bytes_of({16});
  outputs[0].row_weights = {0, 1, 2, 3, 4, 0};
  outputs[1].row_weights = {5, 0};
  for (RankOutput& output : outputs) output.out_type = DataType::kFp32;
  const std::vector<RankCombined> combined =
      reference_combine(config, small_inputs(), outputs, 1, DataType::kFp32);
  EXPECT_EQ(floats_of(combined[0].out), (Floats{17, 2}));
  EXPECT_EQ(combined[0].out_topk_weights, (Floats{5, 1, 2, 3}));
  EXPECT_EQ(combined[1].out_topk_weights, (Floats{4, 0}));
}

}  // namespace
}  // namespace ferry::internal
