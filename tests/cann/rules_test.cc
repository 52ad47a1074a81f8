// Rules of the operators, by triplets that were written by hand: the rows of each rank, in order.
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "operator_case.h"
#include "small_call.h"

namespace ferry::test {
namespace {

using Triplet = std::array<std::int32_t, 3>;

// Triplets that every rank receives.
std::vector<std::vector<Triplet>> triplets_of(const OperatorCase& c) {
  std::vector<std::vector<Triplet>> all(c.ep * c.tp);
  run_ranks(Mode::kThreads, c.ep * c.tp, [&](Group group) {
    const int rank = group.rank();
    const OperatorInput& in = c.inputs[rank];
    const cann::Communicator communicator(std::move(group), {.group_ep = "ep", .group_tp = "tp"});
    Received received;
    cann::DispatchArgs args{.attributes = attributes_of(c, rank),
                            .x = {in.x.data(), in.bs, c.h, c.type},
                            .expert_ids = {in.ids.data(), in.bs, c.k},
                            .received = &received};
    if (!in.mask.empty()) args.x_active_mask = {in.mask.data(), in.bs, in.mask_columns};
    require_success(moe_distribute_dispatch(communicator, args), "dispatch");
    for (std::size_t i = 0; i < received.sources.size(); i += 3)
      all[rank].push_back({received.sources[i], received.sources[i + 1], received.sources[i + 2]});
  });
  return all;
}

OperatorCase one_id_each(int ep, int shared_num, int shared_ranks, std::int64_t bs) {
  OperatorCase c;
  c.ep = ep;
  c.moe = ep - shared_ranks;
  c.shared_num = shared_num;
  c.shared_ranks = shared_ranks;
  c.k = 1;
  fill_inputs(c, std::vector<std::int64_t>(ep, bs));
  return c;
}

// Ranks r % G + j * G, G = 4 / 2: rank 0 and 1 hold shared expert 0, ranks 2 and 3 shared expert 1.
TEST(SharedRanks, Version2HearsFromEveryGthRank) {
  const auto all = triplets_of(one_id_each(6, 2, 4, 2));
  const std::vector<Triplet> even = {{0, 0, 1}, {0, 1, 1}, {2, 0, 1},
                                     {2, 1, 1}, {4, 0, 1}, {4, 1, 1}};
  const std::vector<Triplet> odd = {{1, 0, 1}, {1, 1, 1}, {3, 0, 1},
                                    {3, 1, 1}, {5, 0, 1}, {5, 1, 1}};
  EXPECT_EQ(all[0], even);
  EXPECT_EQ(all[1], odd);
  for (const int j : {2, 3}) {
    std::vector<Triplet> second = j == 2 ? even : odd;
    for (Triplet& row : second) row[2] = 2;  // K + 1
    EXPECT_EQ(all[j], second);
  }
}

// Share i of rank r has floor((i+1+r) * 5 / 2) - floor((i+r) * 5 / 2) tokens: 2 and 3 of rank 2, 3
// and 2 of rank 3.
TEST(SharedRanks, Version1DealsTokensInRunsAndKeepsItsOwn) {
  OperatorCase c = one_id_each(4, 1, 2, 5);
  c.version = 1;
  const auto all = triplets_of(c);
  const std::vector<Triplet> first = {{0, 0, 1}, {0, 1, 1}, {0, 2, 1}, {0, 3, 1}, {0, 4, 1},
                                      {2, 0, 1}, {2, 1, 1}, {3, 0, 1}, {3, 1, 1}, {3, 2, 1}};
  const std::vector<Triplet> second = {{1, 0, 1}, {1, 1, 1}, {1, 2, 1}, {1, 3, 1}, {1, 4, 1},
                                       {2, 2, 1}, {2, 3, 1}, {2, 4, 1}, {3, 3, 1}, {3, 4, 1}};
  EXPECT_EQ(all[0], first);
  EXPECT_EQ(all[1], second);
}

TEST(SharedRanks, TokenWithoutATrueEntryIsNotSentToThem) {
  OperatorCase c = one_id_each(2, 1, 1, 3);
  for (OperatorInput& in : c.inputs) {
    in.mask = {1, 0, 1};
    in.mask_columns = 1;
  }
  const std::vector<Triplet> kept = {{0, 0, 1}, {0, 2, 1}, {1, 0, 1}, {1, 2, 1}};
  EXPECT_EQ(triplets_of(c)[0], kept);
}

TEST(Masks, TripletsNameTheOriginalTokens) {
  OperatorCase c = one_id_each(1, 0, 0, 4);
  c.moe = 2;
  c.k = 2;
  OperatorInput& in = c.inputs[0];
  in.ids = {0, 1, 0, 1, 0, 1, 0, 1};
  in.mask = {0, 1, 0, 0, 1, 0, 1, 1};
  in.mask_columns = 2;
  const std::vector<Triplet> kept = {{0, 2, 0}, {0, 3, 0}, {0, 0, 1}, {0, 3, 1}};
  EXPECT_EQ(triplets_of(c)[0], kept);
}

// cat(g0, g1) on the even rank of a pair, cat(g1, g0) on the odd one.
TEST(TensorParallel, OwnRowsComeBeforeThePeers) {
  OperatorCase c;
  c.ep = 2, c.tp = 2, c.moe = 2, c.k = 1, c.global_bs = 6;
  fill_inputs(c, {2, 3, 2, 3});
  for (int rank = 0; rank < 4; ++rank) c.inputs[rank].ids.assign(c.inputs[rank].bs, 0);
  const auto all = triplets_of(c);
  const std::vector<Triplet> even = {{0, 0, 0}, {0, 1, 0}, {1, 0, 0}, {1, 1, 0}, {0, 0, 0},
                                     {0, 1, 0}, {0, 2, 0}, {1, 0, 0}, {1, 1, 0}, {1, 2, 0}};
  std::vector<Triplet> odd(even.begin() + 4, even.end());
  odd.insert(odd.end(), even.begin(), even.begin() + 4);
  EXPECT_EQ(all[0], even);
  EXPECT_EQ(all[1], odd);
  EXPECT_TRUE(all[2].empty() && all[3].empty());
}

// A = Bg * min(localE, K) for experts, maxBs * ceil(ep / (S / shared_expert_num)) for shared ranks.
TEST(Sizes, RowsThatMustFit) {
  cann::DispatchArgs args{.attributes = {.ep_world_size = 8,
                                         .moe_expert_num = 48,
                                         .shared_expert_num = 1,
                                         .shared_expert_rank_num = 2},
                          .x = {nullptr, 10, 64, DataType::kBf16},
                          .expert_ids = {nullptr, 10, 6}};
  args.attributes.ep_rank_id = 5;
  EXPECT_EQ(max_rows(args), 8 * 10 * 6);
  args.attributes.moe_expert_num = 12;
  EXPECT_EQ(max_rows(args), 8 * 10 * 2);
  args.attributes.global_bs = 8 * 100;
  EXPECT_EQ(max_rows(args), 8 * 100 * 2);
  args.attributes.ep_rank_id = 1;
  EXPECT_EQ(max_rows(args), 100 * 4);
  const std::int32_t elastic = 0;
  args.elastic_info = {&elastic, 1};
  EXPECT_EQ(max_rows(args), 8 * 100 * 2);
  args.attributes.global_bs = 81;
  EXPECT_THROW(max_rows(args), Error);
}

TEST(Sizes, WorkspaceIsThatOfTheExchange) {
  const cann::DispatchArgs args{
      .attributes = {.ep_world_size = 4, .moe_expert_num = 8, .global_bs = 4 * 32},
      .quant_mode = 2,
      .x = {nullptr, 10, 256, DataType::kBf16},
      .expert_ids = {nullptr, 10, 2}};
  WindowBytes bytes{};
  ASSERT_TRUE(workspace_bytes(args, bytes).ok());
  const WindowBytes expected = window_bytes(
      {.max_tokens = 32, .hidden = 256, .num_experts = 8, .top_k = 2, .wire = Wire::kInt8}, 4);
  EXPECT_EQ(bytes.expected, expected.expected);
  EXPECT_EQ(bytes.worst, expected.worst);
  EXPECT_GT(bytes.worst, bytes.expected);
  cann::CombineArgs combine{.attributes = args.attributes,
                            .expand_x = {nullptr, 0, 256, DataType::kBf16},
                            .expert_ids = {nullptr, 10, 2}};
  EXPECT_TRUE(workspace_bytes(combine, bytes).ok());
  combine.attributes.global_bs = 7;
  const cann::Result refused = workspace_bytes(combine, bytes);
  EXPECT_EQ(refused.code, cann::StatusCode::kTilingError);
  EXPECT_TRUE(contains(refused.message(), "global_bs 7")) << refused.message();
}

}  // namespace
}  // namespace ferry::test
