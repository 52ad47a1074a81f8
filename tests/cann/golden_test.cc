// The output of a run of MoeDistributeDispatch on CANN, compared with the front: every K that the
// run may have had, both types of token counts, the order of rows, and the triplets.
#include <gtest/gtest.h>

#include <numeric>

#include "exchange/cann_golden.h"
#include "exchange/frame.h"
#include "ferry/cann.h"
#include "operator_case.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kLocal = cann_golden::kNumExperts / kRanks;

struct Golden {
  int top_k;
  int token_nums_type;
};

// One byte per token, from the number of its rank and its own number.
std::vector<std::uint8_t> tokens(int rank, std::int64_t bs) {
  std::vector<std::uint8_t> x(bs);
  std::iota(x.begin(), x.end(), static_cast<std::uint8_t>(100 * rank));
  return x;
}

void require_rows(std::span<const std::uint8_t> expand_x, std::span<const std::int32_t> triplets,
                  std::int64_t num_rows, const std::vector<std::vector<std::int32_t>>& ids,
                  int top_k) {
  std::array<std::int64_t, 4> before = {-1, -1, -1, -1};  // expert, source, token, k
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int32_t* source = &triplets[3 * row];
    require(expand_x[row] == 100 * source[0] + source[1], "the row of its triplet");
    const std::int64_t expert = ids[source[0]][source[1] * top_k + source[2]];
    const std::array<std::int64_t, 4> here = {expert, source[0], source[1], source[2]};
    require(expert < kLocal && before < here, "rows by expert, source, token, k");
    before = here;
  }
}

void dispatch_golden(const Golden& golden, const cann::Communicator& communicator, int rank) {
  const std::int64_t bs = std::ssize(cann_golden::kExpertIds) / golden.top_k;
  std::vector<std::vector<std::int32_t>> ids;
  for (const internal::RankInput& input : cann_golden::inputs(golden.top_k))
    ids.emplace_back(input.topk_ids.begin(), input.topk_ids.end());
  const std::vector<std::uint8_t> x = tokens(rank, bs);
  cann::DispatchArgs args{.attributes = {.ep_world_size = kRanks,
                                         .ep_rank_id = rank,
                                         .moe_expert_num = cann_golden::kNumExperts},
                          .expert_token_nums_type = golden.token_nums_type,
                          .x = {x.data(), bs, 1, DataType::kBytes},
                          .expert_ids = {ids[rank].data(), bs, golden.top_k}};
  const std::int64_t capacity = max_rows(args);
  require(capacity == kRanks * bs * golden.top_k, "A: two ranks, K of sixteen experts");
  std::vector<std::uint8_t> expand_x(capacity);
  std::vector<std::int32_t> assist(capacity * 128), expand_idx(bs * golden.top_k);
  std::vector<std::int32_t> counts(kLocal * kRanks), tp_counts(1);
  std::vector<std::int64_t> token_nums(kLocal);
  args.expand_x = {expand_x.data(), capacity, 1, DataType::kBytes};
  args.assist_info_for_combine = assist;
  args.expand_idx = expand_idx;
  args.expert_token_nums = token_nums;
  args.ep_recv_counts = counts;
  args.tp_recv_counts = tp_counts;
  require_success(moe_distribute_dispatch(communicator, args), "dispatch");
  if (rank != 0) return;
  require_equal<std::int32_t>(expand_idx, cann_golden::kExpandIdx, "expandIdx");
  require_equal<std::int32_t>(counts, cann_golden::kSendCounts, "sendCountsGlobal");
  require(tp_counts[0] == cann_golden::kSendCounts.back(), "tpRecvCounts");
  std::vector<std::int64_t> expected = cann_golden::kExpertTokenNums;
  if (golden.token_nums_type == 1)
    std::adjacent_difference(expected.begin(), expected.end(), expected.begin());
  require_equal<std::int64_t>(token_nums, expected, "expertTokenNums");
  require_rows(expand_x, assist, counts.back(), ids, golden.top_k);
}

TEST(CannGoldenVector, IsWhatDispatchGives) {
  run_ranks(Mode::kThreads, kRanks, [](Group group) {
    const int rank = group.rank();
    const cann::Communicator communicator(std::move(group));
    for (const int top_k : cann_golden::kTopK) {
      for (const int type : {0, 1}) dispatch_golden({top_k, type}, communicator, rank);
    }
  });
}

}  // namespace
}  // namespace ferry::test
