// The operators compared with the model: one feature at a time, then all of them at random. Every
// output is compared bit for bit.
#include <gtest/gtest.h>

#include "operator_case.h"

namespace ferry::test {
namespace {

OperatorCase small(int ep, int moe, std::uint64_t seed) {
  OperatorCase c;
  c.ep = ep;
  c.moe = moe;
  c.h = 48;
  c.k = 3;
  c.seed = seed;
  return c;
}

void run_small(OperatorCase c, const InputOptions& options = {}) {
  fill_inputs(c, std::vector<std::int64_t>(c.ep * c.tp, 7), options);
  run_case(c);
}

TEST(Operators, BatchesOfOneSize) { run_small(small(4, 8, 1)); }

TEST(Operators, RunningSumOfTokenNums) {
  OperatorCase c = small(3, 9, 2);
  c.token_nums_type = 0;
  run_small(c);
}

TEST(Operators, UnequalAndEmptyBatchesWithAMaskAndGlobalBs) {
  OperatorCase c = small(4, 8, 3);
  c.global_bs = 4 * 11;
  fill_inputs(c, {11, 0, 3, 7}, {.masks = Masks::kEntries});
  run_case(c);
}

TEST(Operators, ExpertsThatDoNotDivideByRanks) { run_small(small(3, 7, 4)); }
TEST(Operators, MoreRanksThanExperts) {
  OperatorCase c = small(5, 3, 5);
  c.k = 2;
  run_small(c);
}
TEST(Operators, OneRank) { run_small(small(1, 4, 6)); }
TEST(Operators, IdMinusOne) { run_small(small(3, 6, 7), {.minus_one = true}); }
TEST(Operators, PrefixMask) { run_small(small(3, 6, 8), {.masks = Masks::kPrefix}); }
TEST(Operators, AnyTokenMask) { run_small(small(3, 6, 9), {.masks = Masks::kTokens}); }
TEST(Operators, EntryMask) { run_small(small(3, 6, 10), {.masks = Masks::kEntries}); }

TEST(Operators, DuplicateIdsBringARowEach) {
  OperatorCase c = small(3, 6, 11);
  c.views = true;
  run_small(c, {.duplicates = true});
}

TEST(Operators, TopKOf32) {
  OperatorCase c = small(2, 40, 12);
  c.k = 32;
  run_small(c);
}

TEST(Operators, SharedRanksOfVersion1) {
  OperatorCase c = small(5, 6, 13);
  c.version = 1;
  c.shared_num = 1;
  c.shared_ranks = 2;
  run_small(c, {.masks = Masks::kTokens});
}

TEST(Operators, TwoSharedExpertsOnFourRanksAndASharedOutput) {
  OperatorCase c = small(7, 6, 14);
  c.shared_num = 2;
  c.shared_ranks = 4;
  run_small(c, {.masks = Masks::kEntries, .shared_x = true});
}

TEST(Operators, SpecialExperts) {
  OperatorCase c = small(3, 6, 15);
  c.zero = 2, c.copy = 1, c.constant = 2;
  c.k = 6;
  run_small(c, {.masks = Masks::kEntries});
}

TEST(Operators, SpecialExpertsAlone) {
  OperatorCase c = small(2, 1, 16);
  c.constant = 3;
  run_small(c);
}

TEST(Operators, Int8) {
  OperatorCase c = small(3, 6, 17);
  c.quant_mode = 2;
  run_small(c);
}

TEST(Operators, Int8WithSmoothScalesOfExperts) {
  OperatorCase c = small(4, 6, 18);
  c.quant_mode = 2;
  c.shared_num = c.shared_ranks = 1;
  fill_factors(c, true, true);
  run_small(c);
}

TEST(Operators, StaticInt8) {
  for (const auto& [per_expert, per_channel] :
       {std::pair(false, false), {false, true}, {true, true}}) {
    OperatorCase c = small(3, 6, 19);
    c.quant_mode = 1;
    fill_factors(c, per_expert, per_channel);
    run_small(c);
  }
}

TEST(Operators, Fp8OfGroups) {
  OperatorCase c = small(3, 6, 20);
  c.quant_mode = 3;
  c.h = 300;
  run_small(c);
}

TEST(Operators, PackedTypesWithTheirScalesPassThrough) {
  for (const DataType type : {DataType::kBytes, DataType::kInt8, DataType::kFp8E4m3}) {
    OperatorCase c = small(3, 6, 21);
    c.type = type;
    c.token_scale_columns = 3;
    run_small(c);
  }
}

TEST(Operators, CombineInInt8) {
  for (const bool views : {false, true}) {
    OperatorCase c = small(3, 6, 22);
    c.comm_quant_mode = 2;
    c.views = views;
    run_small(c);
  }
}

TEST(Operators, QuantisedBothWays) {
  OperatorCase c = small(3, 6, 23);
  c.quant_mode = 2;
  c.comm_quant_mode = 2;
  run_small(c);
}

TEST(Operators, TensorParallelPairs) {
  for (const int comm_quant_mode : {0, 2}) {
    OperatorCase c = small(3, 3, 24);
    c.tp = 2;
    c.comm_quant_mode = comm_quant_mode;
    run_small(c);
  }
}

TEST(Operators, TensorParallelPairsWithSeveralExperts) {
  OperatorCase c = small(2, 6, 25);
  c.tp = 2;
  c.quant_mode = 2;
  run_small(c, {.masks = Masks::kEntries});
}

TEST(Operators, ElasticScaleDown) {
  OperatorCase c = small(5, 9, 26);
  c.shared_num = 1;
  c.shared_ranks = 2;
  scale_down(c, {1, 2, 4});
  run_small(c);
}

TEST(Operators, ElasticWithSmoothScalesAndSpecialExperts) {
  OperatorCase c = small(5, 10, 27);
  c.quant_mode = 2;
  c.copy = 1, c.constant = 1;
  fill_factors(c, true, true);
  scale_down(c, {4, 1, 0});
  run_small(c);
}

TEST(Operators, ElasticThatIsNotScaledDown) {
  OperatorCase c = small(3, 6, 28);
  c.elastic.resize(4 + 2 * 3);
  run_small(c);
}

TEST(Operators, AddRmsNorm) {
  for (const DataType type : {DataType::kBf16, DataType::kFp16, DataType::kFp32}) {
    OperatorCase c = small(3, 6, 29);
    c.type = type;
    run_small(c, {.masks = Masks::kTokens, .shared_x = true, .norm = true});
  }
}

TEST(Operators, ViewsInsteadOfCopies) {
  OperatorCase c = small(3, 6, 30);
  c.views = true;
  run_small(c);
}

TEST(Operators, PlainSum) {
  OperatorCase c = small(3, 6, 31);
  c.plain_sum = true;
  c.weights_travel = false;
  run_small(c);
}

TEST(Operators, EverythingAtRandom) {
  const int cases = std::max(20, static_cast<int>(150 * stress_scale()));
  for (int seed = 1; seed <= cases && !testing::Test::HasFailure(); ++seed)
    run_case(random_case(seed));
}

}  // namespace
}  // namespace ferry::test
