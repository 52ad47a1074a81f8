// The oracle against results worked out by hand, so that the engine and the oracle cannot be wrong
// together.
#include "oracle/reference.h"

#include <gtest/gtest.h>

#include "kernels/kernels.h"
#include "reference_cases.h"

namespace ferry::internal {
namespace {

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

// One token on rank 0 with experts 0, 2, 1, of which 0 and 1 are on rank 0. 2^24 + 1 rounds to
// 2^24.
TEST(Reference, PartialsOfARankAreAddedInThePlaceOfItsLastEntry) {
  ExchangeConfig config = small_config(Layout::kExpertMajor);
  config.top_k = 3;
  const std::vector<RankInput> inputs = {{1, bytes_of({0}), {0, 2, 1}, {}, {}, {}}, {}};
  std::vector<RankOutput> outputs(2);
  for (RankOutput& output : outputs) output.out_type = DataType::kFp32;
  outputs[0].expert_rows = bytes_of({-0x1p23F, -0x1p23F});
  outputs[1].expert_rows = bytes_of({1});
  outputs[0].bias[0] = bytes_of({0x1p24F});
  const auto out = [&](Partials partials) {
    outputs[0].partials = partials;
    return floats_of(reference_combine(config, inputs, outputs, 1, DataType::kFp32)[0].out);
  };
  EXPECT_EQ(out(Partials::kPerRank), (Floats{0}));
  EXPECT_EQ(out(Partials::kNone), (Floats{1}));
}

// 1 + 2^-8 is between two bf16 numbers and rounds to 1.
TEST(Reference, PartialsAreRoundedToTheTypeOfTheRows) {
  ExchangeConfig config = small_config(Layout::kExpertMajor);
  config.dtype = DataType::kBf16;
  config.num_experts = 2;
  const std::vector<RankInput> inputs = {{1, std::vector<std::byte>(2), {1, 0}, {}, {}, {}}};
  std::vector<RankOutput> outputs(1);
  outputs[0].out_type = DataType::kFp32;
  outputs[0].expert_rows.resize(4);
  from_float(1.0F, outputs[0].expert_rows.data(), DataType::kBf16);
  from_float(0x1p-8F, &outputs[0].expert_rows[2], DataType::kBf16);
  const auto out = [&](Partials partials) {
    outputs[0].partials = partials;
    return floats_of(reference_combine(config, inputs, outputs, 1, DataType::kBf16)[0].out);
  };
  EXPECT_EQ(out(Partials::kPerRank), (Floats{1}));
  EXPECT_EQ(out(Partials::kNone), (Floats{1 + 0x1p-8F}));
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

TEST(ReferenceShared, ByRankSendsEachTokenToOneRankOfEverySharedExpert) {
  ExchangeConfig config = config_of(1, 1);
  config.shared = {.num_experts = 2, .num_ranks = 4};  // two ranks for each
  std::vector<RankInput> inputs;
  for (int rank = 0; rank < 5; ++rank) inputs.push_back(tokens(10.0F * rank, 1, {0}));
  inputs[2].token_mask = {0};
  inputs[3].topk_ids = {-1};
  const std::vector<RankReceived> received = reference_dispatch(config, inputs);
  EXPECT_EQ(received[0].sources, (Ints{0, 0, 1, 4, 0, 1}));
  EXPECT_EQ(received[1].sources, (Ints{1, 0, 1}));
  EXPECT_EQ(received[2].sources, (Ints{0, 0, 2, 4, 0, 2}));
  EXPECT_EQ(received[3].sources, (Ints{1, 0, 2}));
  EXPECT_EQ(received[4].sources, (Ints{0, 0, 0, 1, 0, 0, 4, 0, 0}));
  EXPECT_EQ(floats_of(received[2].rows), (Floats{0, 40}));
  EXPECT_EQ(received[2].weights, (Floats{1, 1}));
  EXPECT_EQ(received[4].weights, (Floats{2, 2, 2}));
  EXPECT_EQ(received[2].tokens_per_expert, (Ids{2}));
  EXPECT_EQ(received[2].running_counts, (Ids{1, 1, 1, 1, 2}));
}

TEST(ReferenceShared, ByTokenDealsTokensOutInRunsAndSharedRanksKeepTheirOwn) {
  ExchangeConfig config = config_of(2, 1);
  config.shared = {.num_experts = 1, .num_ranks = 2, .rule = SharedRule::kByToken};
  const Ids five = {0, 0, 0, 0, 0};
  const std::vector<RankInput> inputs = {tokens(0, 1, {0}), tokens(10, 1, {1, 1}),
                                         tokens(20, 1, five), tokens(30, 1, five)};
  const std::vector<RankReceived> received = reference_dispatch(config, inputs);
  // Rank 2: 7 - 5 and 10 - 7 tokens; rank 3: 10 - 7 and 12 - 10.
  EXPECT_EQ(floats_of(received[0].rows), (Floats{0, 20, 21, 30, 31, 32}));
  EXPECT_EQ(floats_of(received[1].rows), (Floats{10, 11, 22, 23, 24, 33, 34}));
  EXPECT_EQ(received[0].running_counts, (Ids{1, 1, 3, 6}));
}

TEST(ReferenceShared, IsTheLastLocalExpertAndShowsInRankMajorAsKOnly) {
  ExchangeConfig config = config_of(2, 1, Layout::kRankMajor);
  config.expert_rank = {0, 1};
  config.shared = {.num_experts = 1, .num_ranks = 1};
  const std::vector<RankInput> inputs = {tokens(0, 1, {0}), tokens(10, 1, {1})};
  const std::vector<RankReceived> received = reference_dispatch(config, inputs);
  EXPECT_EQ(received[0].sources, (Ints{0, 0, 0, 1, 0, 1}));
  EXPECT_EQ(received[0].topk_ids, (Ints{0, -1}));
  EXPECT_EQ(received[0].weights, (Floats{2, 0}));
  EXPECT_EQ(received[0].tokens_per_expert, (Ids{1, 2}));
  EXPECT_EQ(received[0].running_counts, (Ids{1, 1, 2, 3}));
  EXPECT_EQ(received[0].running_rows_per_rank, (Ids{1, 2}));
  EXPECT_EQ(received[1].sources, (Ints{1, 0, 0}));
}

TEST(ReferenceShared, RowsAreAddedUnweightedThenTheSharedOutputThenTheResidual) {
  ExchangeConfig config = config_of(1, 1);
  config.shared = {.num_experts = 1, .num_ranks = 1};
  const std::vector<RankInput> inputs = {tokens(0, 1, {}), tokens(10, 1, {0})};
  std::vector<RankOutput> outputs = {rows({1}), rows({0.5F})};
  outputs[1].weighted = true;
  outputs[1].bias[0] = bytes_of({0x1p24F});
  outputs[1].shared_output = bytes_of({-0x1p24F});
  outputs[1].residual = bytes_of({3});
  outputs[1].gamma = bytes_of({-5});
  outputs[1].epsilon = 7;
  // 2^24 swallows the routed 1 and the shared 1 one after the other; y = 3 / sqrt(9 + 7) * -5.
  const std::vector<RankCombined> combined =
      reference_combine(config, inputs, outputs, 1, DataType::kFp32);
  EXPECT_EQ(floats_of(combined[1].out), (Floats{3}));
  EXPECT_EQ(combined[1].rstd, (Floats{0.25F}));
  EXPECT_EQ(floats_of(combined[1].y), (Floats{-3.75F}));
  EXPECT_TRUE(combined[0].out.empty() && combined[0].y.empty());
}

TEST(ReferenceShared, RowsHaveNoWeight) {
  ExchangeConfig config = config_of(1, 1);
  config.shared = {.num_experts = 1, .num_ranks = 1};
  const std::vector<RankInput> inputs = {tokens(0, 1, {}), tokens(10, 1, {0, 0})};
  std::vector<RankOutput> outputs = {rows({1, 10}), rows({100, 1000})};
  outputs[1].weighted = true;
  outputs[0].row_weights = {5, 6};
  outputs[1].row_weights = {7, 8};
  const auto combined = reference_combine(config, inputs, outputs, 1, DataType::kFp32);
  EXPECT_EQ(floats_of(combined[1].out), (Floats{2 * 100 + 1, 2 * 1000 + 10}));
  EXPECT_EQ(combined[1].out_topk_weights, (Floats{7, 8}));
}

TEST(ReferenceSpecial, ExpertsAreNeverSentAndTheirTermsComeAtTheirK) {
  ExchangeConfig config = config_of(1, 4);
  config.special = {.zero = 1, .copy = 1, .constant = 2};
  std::vector<RankInput> inputs = {tokens(6, 4, {2, 1, 4, 0})};
  inputs[0].topk_weights = {3, 100, 2, 0.5F};
  EXPECT_EQ(reference_dispatch(config, inputs)[0].sources, (Ints{0, 0, 3}));
  std::vector<RankOutput> outputs = {rows({40})};
  outputs[0].alpha1 = outputs[0].alpha2 = bytes_of({9, 0});  // equal shares
  outputs[0].v = bytes_of({99, 10});
  const auto combine = [&] {
    return floats_of(reference_combine(config, inputs, outputs, 1, DataType::kFp32)[0].out);
  };
  EXPECT_EQ(combine(), (Floats{6 + (0.5F * 6 + 0.5F * 10) + 40}));
  outputs[0].weighted = true;
  EXPECT_EQ(combine(), (Floats{3 * 6 + 2 * (0.5F * 6 + 0.5F * 10) + 0.5F * 40}));
  // At its k: 1.5, then 2^25 that swallows it, then the row.
  inputs[0].topk_weights = {0.25F, 0, 0x1p22F, 1};
  outputs[0].expert_rows = bytes_of({-0x1p25F});
  EXPECT_EQ(combine(), (Floats{0}));
  config.layout = Layout::kRankMajor;  // behind the rows, which are not weighted
  inputs[0].topk_weights = {3, 0, 2, 100};
  outputs[0].expert_rows = bytes_of({40});
  EXPECT_EQ(combine(), (Floats{40 + 3 * 6 + 2 * 8}));
}

TEST(ReferenceSpecial, AnIdOfAZeroExpertMakesATokenTakePart) {
  ExchangeConfig config = config_of(1, 1);
  config.special = {.zero = 1};
  config.shared = {.num_experts = 1, .num_ranks = 1};
  const std::vector<RankReceived> received =
      reference_dispatch(config, {tokens(0, 1, {1, -1}), tokens(10, 1, {})});
  EXPECT_EQ(floats_of(received[0].rows), (Floats{0}));
  EXPECT_EQ(received[1].num_rows, 0);
}

TEST(ReferenceReplicas, AreChosenByRankByTokenOrByTable) {
  ExchangeConfig config = config_of(4, 1);
  config.replicas.instances = {{3, 1}, {0}, {2}};  // logical 0: expert 3 of rank 1, 1 of rank 0
  config.special.zero = 1;                         // id 3
  std::vector<RankInput> inputs = {tokens(0, 1, {0, 0, 1, 3}), tokens(10, 1, {0, 0, 2, 3})};
  const auto rows_of = [&](int rank) {
    return floats_of(reference_dispatch(config, inputs)[rank].rows);
  };
  EXPECT_EQ(rows_of(0), (Floats{2, 10, 11}));
  EXPECT_EQ(rows_of(1), (Floats{12, 0, 1}));
  config.replicas.choice = ReplicaChoice::kByToken;
  EXPECT_EQ(rows_of(0), (Floats{2, 1, 11}));
  EXPECT_EQ(rows_of(1), (Floats{12, 0, 10}));
  config.replicas.choice = ReplicaChoice::kByTable;
  inputs[0].replica_table = {1, 0, 0};
  inputs[1].replica_table = {0, 0, 0};
  EXPECT_EQ(rows_of(0), (Floats{2, 0, 1}));
  EXPECT_EQ(rows_of(1), (Floats{12, 10, 11}));
}

TEST(ReferenceGroups, EveryRankReceivesItsOwnDomainFirst) {
  ExchangeConfig config = config_of(2, 1);
  config.tp_size = 2;  // ranks 0 and 1 share expert 0, ranks 2 and 3 expert 1
  std::vector<RankInput> inputs;
  for (int rank = 0; rank < 4; ++rank) inputs.push_back(tokens(10.0F * rank, 1, {0, rank / 3}));
  std::vector<RankReceived> received = reference_dispatch(config, inputs);
  EXPECT_EQ(floats_of(received[0].rows), (Floats{0, 1, 20, 21, 10, 11, 30}));
  EXPECT_EQ(floats_of(received[1].rows), (Floats{10, 11, 30, 0, 1, 20, 21}));
  EXPECT_EQ(floats_of(received[2].rows), (Floats{31}));
  EXPECT_EQ(received[1].sources,
            (Ints{0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1, 1, 0}));
  EXPECT_EQ(received[0].running_counts, (Ids{2, 4, 2, 3}));
  EXPECT_EQ(received[1].running_counts, (Ids{2, 3, 2, 4}));
  EXPECT_EQ(received[1].tokens_per_expert, (Ids{7}));
  config.layout = Layout::kRankMajor;
  received = reference_dispatch(config, inputs);
  EXPECT_EQ(floats_of(received[1].rows), (Floats{10, 11, 30, 0, 1, 20, 21}));
  EXPECT_EQ(received[1].running_rows_per_rank, (Ids{2, 3, 2, 4}));
  EXPECT_EQ(received[3].running_rows_per_rank, (Ids{0, 1, 0, 0}));
}

TEST(ReferenceGroups, CombineAddsTheRowsOfAGroupFromItsOwnTpRankOn) {
  ExchangeConfig config = config_of(1, 1);
  config.tp_size = 3;
  const std::vector<RankInput> inputs(3, tokens(0, 1, {0}));
  // Of each domain's token rank 0 has 1, rank 1 2^24, rank 2 -2^24.
  std::vector<RankOutput> outputs = {rows(Floats(3, 1)), rows(Floats(3, 0x1p24F)),
                                     rows(Floats(3, -0x1p24F))};
  for (RankOutput& output : outputs) output.row_weights = floats_of(output.expert_rows);
  std::vector<RankCombined> combined =
      reference_combine(config, inputs, outputs, 1, DataType::kFp32);
  EXPECT_EQ(floats_of(combined[0].out), (Floats{0}));
  EXPECT_EQ(floats_of(combined[1].out), (Floats{1}));
  EXPECT_EQ(floats_of(combined[2].out), (Floats{1}));
  EXPECT_EQ(combined[0].out_topk_weights, (Floats{0}));
  EXPECT_EQ(combined[1].out_topk_weights, (Floats{1}));
}

TEST(ReferenceGroups, RoundsTheSumOfAGroupBeforeItIsWeighted) {
  ExchangeConfig config = config_of(1, 1);
  config.tp_size = 2;
  const std::vector<RankInput> inputs(2, tokens(0, 1, {0}));
  std::vector<RankOutput> outputs = {rows({}), rows({})};
  const auto bf16 = [](std::uint16_t bits) {
    return std::vector<std::byte>{static_cast<std::byte>(bits), static_cast<std::byte>(bits >> 8)};
  };
  for (RankOutput& output : outputs) output.weighted = true;
  for (const std::vector<std::byte>& row : {bf16(0x4380), bf16(0x4380)})  // 256
    outputs[0].expert_rows.insert(outputs[0].expert_rows.end(), row.begin(), row.end());
  for (const std::vector<std::byte>& row : {bf16(0x3f80), bf16(0x3f80)})  // 1
    outputs[1].expert_rows.insert(outputs[1].expert_rows.end(), row.begin(), row.end());
  // 257 is between two numbers of bf16, 256 is the even one.
  EXPECT_EQ(floats_of(reference_combine(config, inputs, outputs, 1, DataType::kBf16)[0].out),
            (Floats{512}));
}

TEST(ReferenceActiveRanks, OthersAreNeitherReadNorSentTo) {
  ExchangeConfig config = config_of(3, 2);
  std::vector<RankInput> inputs = {tokens(0, 2, {0, 2, 1, 0}), {}, tokens(20, 2, {1, 2})};
  for (RankInput& input : inputs) input.active_ranks = {2, 0};
  const std::vector<RankReceived> received = reference_dispatch(config, inputs);
  EXPECT_EQ(received[0].sources, (Ints{1, 0, 0, 1, 1, 1}));
  EXPECT_EQ(received[2].sources, (Ints{0, 0, 1, 1, 0, 1}));
  EXPECT_EQ(floats_of(received[2].rows), (Floats{20, 0}));
  EXPECT_EQ(received[2].running_counts, (Ids{1, 2}));
  EXPECT_TRUE(received[1].num_rows == 0 && received[1].running_counts.empty());
  const std::vector<RankOutput> outputs = {rows({1, 2}), rows({}), rows({4, 8})};
  const std::vector<RankCombined> combined =
      reference_combine(config, inputs, outputs, 1, DataType::kFp32);
  EXPECT_EQ(floats_of(combined[0].out), (Floats{1 + 8, 2}));
  EXPECT_EQ(floats_of(combined[2].out), (Floats{4}));
  EXPECT_TRUE(combined[1].out.empty());
}

TEST(ReferenceActiveRanks, SharedExpertsAndReplicasCountByTheirNumbers) {
  ExchangeConfig config = config_of(2, 1);
  config.shared = {.num_experts = 1, .num_ranks = 2};  // routed: ranks 2 and 3
  config.replicas.instances = {{0, 1}};
  std::vector<RankInput> inputs = {{}, tokens(10, 1, {0}), tokens(20, 1, {0}), tokens(30, 1, {0})};
  for (RankInput& input : inputs) input.active_ranks = {3, 1, 2};
  const std::vector<RankReceived> received = reference_dispatch(config, inputs);
  EXPECT_EQ(floats_of(received[1].rows), (Floats{30, 10, 20}));  // the only shared rank
  EXPECT_EQ(received[1].sources, (Ints{0, 0, 1, 1, 0, 1, 2, 0, 1}));
  EXPECT_EQ(floats_of(received[2].rows), (Floats{30, 20}));  // instance of ranks number 0 and 2
  EXPECT_EQ(floats_of(received[3].rows), (Floats{10}));
}

// Two rows for expert 0, one for expert 1; two scales each.
RankReceived received_scales(ExchangeConfig config) {
  config.scale_bytes = 8;
  config.expert_capacity = 2;
  RankInput input = tokens(0, 1, {0, 1, 0});
  input.token_scales = bytes_of({1, 2, 3, 4, 5, 6});
  return reference_dispatch(config, {input})[0];
}

TEST(ReferenceScales, LieInRowsOrInColumnsThatStartAt16Bytes) {
  ExchangeConfig config = config_of(2, 1);
  const ReferenceScales in_rows = received_scales(config).scales;
  EXPECT_EQ(floats_of(in_rows.bytes), (Floats{1, 2, 5, 6, 3, 4}));
  EXPECT_EQ(in_rows.columns, 2);
  EXPECT_EQ(in_rows.row_stride, 8);
  EXPECT_EQ(in_rows.column_stride, 4);
  config.scale_order = ScaleOrder::kColumnMajor;
  const ReferenceScales in_columns = received_scales(config).scales;
  EXPECT_EQ(floats_of(in_columns.bytes), (Floats{1, 5, 3, 0, 2, 6, 4, 0}));
  EXPECT_EQ(in_columns.row_stride, 4);
  EXPECT_EQ(in_columns.column_stride, 16);
  config.layout = Layout::kPadded;
  const ReferenceScales padded = received_scales(config).scales;
  EXPECT_EQ(floats_of(padded.bytes), (Floats{1, 5, 0, 0, 2, 6, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0}));
  EXPECT_EQ(padded.section_stride, 32);
  EXPECT_EQ(padded.offset(2, 1), 48);
  config.scale_order = ScaleOrder::kRowMajor;
  EXPECT_EQ(floats_of(received_scales(config).scales.bytes), (Floats{1, 2, 5, 6, 3, 4, 0, 0}));
}

TEST(ReferenceScales, OfOddBytesAreColumnsOfOneByte) {
  ExchangeConfig config = config_of(1, 1);
  config.scale_bytes = 3;
  RankInput input = tokens(0, 1, {-1, 0});
  input.token_scales = {std::byte{1}, std::byte{2}, std::byte{3},
                        std::byte{4}, std::byte{5}, std::byte{6}};
  const ReferenceScales scales = reference_dispatch(config, {input})[0].scales;
  EXPECT_EQ(scales.columns, 3);
  EXPECT_EQ(scales.element_bytes, 1);
  EXPECT_EQ(scales.bytes, (std::vector<std::byte>{std::byte{4}, std::byte{5}, std::byte{6}}));
}

TEST(ReferenceWires, Int8QuantisesEachRowWithTheFactorsOfItsExpert) {
  ExchangeConfig config = config_of(2, 2);
  config.hidden = 2;
  config.wire = Wire::kInt8;
  config.shared = {.num_experts = 1, .num_ranks = 1};
  RankInput input = tokens(0, 2, {1, 0});
  input.tokens = bytes_of({1, 2});
  input.factors = {1, 1, /* expert 0 */ 0, 0, /* expert 1 */ 4, -2};
  input.factor_rows = 3;
  input.factor_channels = 2;
  const std::vector<RankReceived> received = reference_dispatch(config, {input, {}});
  const auto int8 = [](std::initializer_list<int> values) {
    std::vector<std::byte> bytes;
    for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
    return bytes;
  };
  EXPECT_EQ(received[0].rows, int8({64, 127}));  // 1 * 63.5 to even
  EXPECT_EQ(floats_of(received[0].scales.bytes), (Floats{1 / 63.5F}));
  EXPECT_EQ(received[1].rows, int8({0, 0, 127, -127}));
  EXPECT_EQ(floats_of(received[1].scales.bytes), (Floats{0, 1 / 31.75F}));
  EXPECT_EQ(received[1].dtype, DataType::kInt8);
  config.wire = Wire::kFp8;
  EXPECT_EQ(reference_dispatch(config, {input, {}})[1].dtype, DataType::kFp8E4m3);
  config.wire = Wire::kInt8Static;
  EXPECT_EQ(reference_dispatch(config, {input, {}})[1].rows, int8({0, 0, 4, -4}));
  EXPECT_EQ(reference_dispatch(config, {input, {}})[1].scales.columns, 0);
}

TEST(ReferenceWires, CombineAddsRowsOfAGroupBeforeTheyTravel) {
  ExchangeConfig config = config_of(1, 1);
  config.tp_size = 2;
  config.hidden = 2;
  config.combine_wire = CombineWire::kInt8Block8;
  std::vector<RankInput> inputs(2, tokens(0, 1, {0}));
  for (RankInput& input : inputs) input.tokens = bytes_of({0, 0});
  // A step is 2 beside 254: 0.3 + 0.3 is nothing, 0.75 + 0.75 is one. Alone in their rows they
  // would travel exactly.
  const std::vector<RankOutput> outputs = {rows({254, 0.3F, 254, 0.75F}),
                                           rows({0, 0.75F, 0, 0.3F})};
  const auto combined = reference_combine(config, inputs, outputs, 2, DataType::kFp32);
  EXPECT_EQ(floats_of(combined[0].out)[1], 0);
  EXPECT_EQ(floats_of(combined[1].out)[1], 254 * (1 / 127.0F));
}

}  // namespace
}  // namespace ferry::internal
