// The oracle's combine between nodes, against results worked out by hand: numbers for which the
// sums of nodes differ from the plain sum. 2^24 + 1 is between two numbers of fp32 and rounds to
// 2^24, 1 + 2^-8 is between two of bf16 and rounds to 1.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/kernels.h"
#include "reference_cases.h"

namespace ferry::internal {
namespace {

constexpr float kBig = 0x1p24F;
const std::vector<int> kTwoByTwo = {0, 0, 1, 1};

// One token, on `source`; expert e is on rank e and has `rows[e]` for it.
struct OneToken {
  std::vector<int> nodes = kTwoByTwo;
  int source = 0;
  Ids ids = {};
  Floats rows = {};
  Layout layout = Layout::kExpertMajor;
  DataType row_type = DataType::kFp32;

  ExchangeConfig config() const {
    ExchangeConfig config =
        config_of(static_cast<int>(rows.size()), static_cast<int>(ids.size()), layout);
    config.algorithm = Algorithm::kHierarchical;
    return config;
  }
  std::vector<RankInput> inputs() const {
    std::vector<RankInput> inputs(nodes.size());
    inputs[source] = tokens(0, static_cast<int>(ids.size()), ids);
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) inputs[rank].node = nodes[rank];
    return inputs;
  }
  std::vector<RankOutput> outputs() const {
    std::vector<RankOutput> outputs(nodes.size());
    for (RankOutput& output : outputs) output.out_type = DataType::kFp32;
    for (const std::int64_t id : ids) {
      if (id < 0 || id >= static_cast<std::int64_t>(rows.size())) continue;
      outputs[id].expert_rows.resize(element_bytes(row_type));
      from_float(rows[id], outputs[id].expert_rows.data(), row_type);
    }
    return outputs;
  }
};

float combine(const OneToken& token, const ExchangeConfig& config,
              const std::vector<RankOutput>& outputs) {
  return floats_of(reference_combine(config, token.inputs(), outputs, config.hidden,
                                     token.row_type)[token.source]
                       .out)[0];
}

float combine(const OneToken& token, Algorithm algorithm, NodeSums sums = NodeSums::kRowType) {
  ExchangeConfig config = token.config();
  config.algorithm = algorithm;
  config.node_sums = sums;
  return combine(token, config, token.outputs());
}

TEST(ReferenceNodes, RowsOfANodeAreSummedBeforeTheSumsAre) {
  const OneToken between{.ids = {2, 0, 3}, .rows = {kBig, 0, 1, 1}};
  EXPECT_EQ(combine(between, Algorithm::kHierarchical), kBig + 2);
  EXPECT_EQ(combine(between, Algorithm::kAllgather), kBig + 2);
  EXPECT_EQ(combine(between, Algorithm::kFullmesh), kBig);
  EXPECT_EQ(combine(between, Algorithm::kHierarchical, NodeSums::kExact), kBig);
  const OneToken before{.ids = {2, 3, 0}, .rows = {kBig, 0, 1, 1}};
  EXPECT_EQ(combine(before, Algorithm::kFullmesh), kBig);
  EXPECT_EQ(combine(before, Algorithm::kFullmesh, NodeSums::kFp32), kBig);
  EXPECT_EQ(combine(before, Algorithm::kFullmesh, NodeSums::kExact), kBig + 2);
}

TEST(ReferenceNodes, OnOneNodeNothingChanges) {
  const OneToken token{.nodes = {0, 0, 0, 0}, .ids = {2, 0, 3}, .rows = {kBig, 0, 1, 1}};
  EXPECT_EQ(combine(token, Algorithm::kHierarchical), kBig);
  EXPECT_EQ(combine(token, Algorithm::kFullmesh), kBig);
}

TEST(ReferenceNodes, SumsComeBehindTheBiasesInTheOrderOfNodesWhereverTheSourceIs) {
  const OneToken token{.source = 2, .ids = {2, 0}, .rows = {kBig, 0, -kBig, 0}};
  std::vector<RankOutput> outputs = token.outputs();
  outputs[2].bias[0] = bytes_of({1});
  EXPECT_EQ(combine(token, token.config(), outputs), 0);  // 1 if its own node came first
}

TEST(ReferenceNodes, SumsAreRoundedToTheTypeOfTheRows) {
  OneToken token{.ids = {2, 3}, .rows = {0, 0, 1, 0x1p-8F}, .row_type = DataType::kBf16};
  EXPECT_EQ(combine(token, Algorithm::kHierarchical), 1);
  EXPECT_EQ(combine(token, Algorithm::kHierarchical, NodeSums::kFp32), 1 + 0x1p-8F);
  EXPECT_EQ(combine(token, Algorithm::kHierarchical, NodeSums::kExact), 1 + 0x1p-8F);
  EXPECT_EQ(combine(token, Algorithm::kFullmesh), 1 + 0x1p-8F);
  token.source = 3;  // the source's own node as well, whatever the algorithm
  EXPECT_EQ(combine(token, Algorithm::kHierarchical), 1);
  EXPECT_EQ(combine(token, Algorithm::kFullmesh), 1);
}

TEST(ReferenceNodes, ARowAloneIsRoundedWhenItIsWeighted) {
  const OneToken token{.source = 2, .ids = {2}, .rows = {0, 0, 1, 0}, .row_type = DataType::kBf16};
  std::vector<RankInput> inputs = token.inputs();
  inputs[2].topk_weights = {1 + 0x1p-8F};
  std::vector<RankOutput> outputs = token.outputs();
  outputs[2].weighted = true;
  ExchangeConfig config = token.config();
  const auto out = [&] {
    return floats_of(reference_combine(config, inputs, outputs, 1, DataType::kBf16)[2].out)[0];
  };
  EXPECT_EQ(out(), 1);
  config.node_sums = NodeSums::kFp32;
  EXPECT_EQ(out(), 1 + 0x1p-8F);
}

TEST(ReferenceNodes, TermsOfTheSourceComeBehindTheSums) {
  const OneToken token{.ids = {4, 0, 2}, .rows = {kBig, 0, -kBig, 0}};
  ExchangeConfig config = token.config();
  config.special.copy = 1;
  std::vector<RankInput> inputs = token.inputs();
  inputs[0].tokens = bytes_of({1});
  const auto out = [&] {
    return floats_of(reference_combine(config, inputs, token.outputs(), 1, token.row_type)[0].out);
  };
  EXPECT_EQ(out(), (Floats{1}));
  config.node_sums = NodeSums::kExact;
  EXPECT_EQ(out(), (Floats{0}));
}

TEST(ReferenceNodes, PartialsOfARankAreMadeInsideItsNode) {
  OneToken token{.ids = {2, 3, 4}, .rows = {0, 0, kBig, 1, -kBig}};
  ExchangeConfig config = token.config();
  config.expert_rank = {0, 1, 2, 3, 2};
  std::vector<RankOutput> outputs(4);
  outputs[0].out_type = DataType::kFp32;
  outputs[2].expert_rows = bytes_of({kBig, -kBig});
  outputs[3].expert_rows = bytes_of({1});
  EXPECT_EQ(combine(token, config, outputs), 0);
  outputs[0].partials = Partials::kPerRank;
  EXPECT_EQ(combine(token, config, outputs), 1);
}

TEST(ReferenceNodes, RankMajorAddsRowsAndScalarsOfEachNode) {
  const OneToken token{.ids = {0, 2, 3}, .rows = {kBig, 0, 1, 1}, .layout = Layout::kRankMajor};
  ExchangeConfig config = token.config();
  std::vector<RankOutput> outputs = token.outputs();
  outputs[0].row_weights = {kBig, 0, 0};
  outputs[2].row_weights = {1, 0, 0};
  outputs[3].row_weights = {1, 5, 0};
  const auto combined = [&] {
    return reference_combine(config, token.inputs(), outputs, 1, token.row_type)[0];
  };
  EXPECT_EQ(floats_of(combined().out), (Floats{kBig + 2}));
  EXPECT_EQ(combined().out_topk_weights, (Floats{kBig + 2, 5, 0}));
  config.algorithm = Algorithm::kFullmesh;
  EXPECT_EQ(floats_of(combined().out), (Floats{kBig}));
  EXPECT_EQ(combined().out_topk_weights, (Floats{kBig, 5, 0}));
  config.algorithm = Algorithm::kHierarchical;
  config.node_sums = NodeSums::kExact;
  EXPECT_EQ(combined().out_topk_weights, (Floats{kBig, 5, 0}));
}

TEST(ReferenceNodes, ScalarsOfExpertLayoutsArePlacedAsTheyAre) {
  const OneToken token{.ids = {2, -1, 0}, .rows = {1, 0, 1, 0}};
  std::vector<RankOutput> outputs = token.outputs();
  outputs[0].row_weights = {3};
  outputs[2].row_weights = {-0.0F};
  const RankCombined combined =
      reference_combine(token.config(), token.inputs(), outputs, 1, token.row_type)[0];
  EXPECT_EQ(combined.out_topk_weights, (Floats{0, 0, 3}));
  EXPECT_TRUE(std::signbit(combined.out_topk_weights[0]));
}

// Ranks of a node need not be neighbours: rank 2 is on the node of rank 0, so its row comes first.
TEST(ReferenceNodes, AnOriginComesInTheOrderOfTheLowestRankOfItsNode) {
  const OneToken token{
      .nodes = {0, 1, 0, 1}, .source = 2, .ids = {1, 2}, .rows = {0, -kBig, kBig, 0}};
  std::vector<RankOutput> outputs = token.outputs();
  outputs[2].bias[0] = bytes_of({1});
  ExchangeConfig config = token.config();
  EXPECT_EQ(combine(token, config, outputs), 0);
  config.algorithm = Algorithm::kFullmesh;
  EXPECT_EQ(combine(token, config, outputs), 0);
}

TEST(ReferenceNodes, RankMajorTakesRowsOfANodeInTheOrderOfTheActiveRanks) {
  const OneToken token{.nodes = {0, 1, 1, 1},
                       .ids = {1, 2, 3},
                       .rows = {0, kBig, -kBig, 1},
                       .layout = Layout::kRankMajor};
  std::vector<RankInput> inputs = token.inputs();
  const auto out = [&] {
    return floats_of(
        reference_combine(token.config(), inputs, token.outputs(), 1, token.row_type)[0].out);
  };
  EXPECT_EQ(out(), (Floats{1}));
  for (RankInput& input : inputs) input.active_ranks = {3, 0, 1, 2};
  EXPECT_EQ(out(), (Floats{0}));
}

TEST(ReferenceNodes, TheWireOfCombineIsForRowsNotForSums) {
  ExchangeConfig config = config_of(4, 2);
  config.hidden = 2;
  config.algorithm = Algorithm::kHierarchical;
  config.combine_wire = CombineWire::kInt8Block8;
  OneToken token{.ids = {2, 3}};
  std::vector<RankInput> inputs = token.inputs();
  inputs[0].tokens = bytes_of({0, 0});
  // A step is 2 beside 254: 0.75 is nothing there, but stays beside 0.
  const std::vector<RankOutput> outputs = {rows({}), rows({}), rows({254, 0.75F}),
                                           rows({0, 0.75F})};
  const auto combined = reference_combine(config, inputs, outputs, 2, DataType::kFp32);
  EXPECT_EQ(floats_of(combined[0].out)[1], 127 * (0.75F * (1 / 127.0F)));
}

TEST(ReferenceNodes, RowsOfATensorParallelGroupAreAddedFirst) {
  ExchangeConfig config = config_of(2, 2);
  config.tp_size = 2;
  config.algorithm = Algorithm::kHierarchical;
  std::vector<RankInput> inputs(4);
  inputs[1] = tokens(0, 2, {0, 1});
  for (int rank = 0; rank < 4; ++rank) inputs[rank].node = kTwoByTwo[rank];
  // tp_rank 1 first: 1 + 2^24 on the source's node, 1 - 2^24 on the other.
  const std::vector<RankOutput> outputs = {rows({kBig}), rows({1}), rows({-kBig}), rows({1})};
  const auto combined = reference_combine(config, inputs, outputs, 1, DataType::kFp32);
  EXPECT_EQ(floats_of(combined[1].out), (Floats{1}));
}

}  // namespace
}  // namespace ferry::internal
