// Ranks with tokens and ranks with experts: each has the memory that its role needs and no more,
// and tokens of other ranks are refused. The conformance suite compares rows and results.
#include <gtest/gtest.h>

#include <numeric>

#include "bad_calls.h"

namespace ferry::test {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20, kPage = 4096;
constexpr int kAttention = 3, kWithExperts = 2, kAll = kAttention + kWithExperts;
constexpr Layout kLayouts[] = {Layout::kExpertMajor, Layout::kRankMajor, Layout::kPadded};

ExchangeConfig split_config(Layout layout) {
  ExchangeConfig config{.max_tokens = 40, .hidden = 96, .num_experts = 8, .top_k = 3};
  config.layout = layout;
  config.token_ranks = {0, 1, 2};
  config.expert_ranks = {3, 4};
  return config;
}

// Rows that an expert rank receives at most: those of all tokens of the token ranks.
std::size_t most_rows(const ExchangeConfig& config) {
  const std::size_t tokens = kAttention * config.max_tokens;
  if (config.layout == Layout::kExpertMajor) return tokens * config.top_k;
  return config.layout == Layout::kPadded ? tokens * config.num_experts / kWithExperts : tokens;
}

// A buffer without gaps: widest rows, sources, weights and ids. Parts begin on pages.
std::size_t buffer_bytes(const ExchangeConfig& config) {
  const std::size_t per_row = config.layout == Layout::kRankMajor ? config.top_k : 1;
  const std::size_t ids = config.layout == Layout::kRankMajor ? config.top_k : 0;
  const std::size_t widest = config.hidden * 4;  // max_output_row_bytes
  return most_rows(config) * (widest + 3 * 4 + per_row * 4 + ids * 4);
}

TEST(Roles, EachRankReservesWhatItsRoleNeeds) {
  for (const Layout layout : kLayouts) {
    const ExchangeConfig config = split_config(layout);
    const Scenario scenario = plain_scenario(kAll, config, 2, 41);
    std::vector<WindowBytes> used(kAll);
    run_ranks(Mode::kThreads, kAll, [&](Group group) {
      Seat seat(group, scenario);
      seat.play(0), seat.play(1);
      used[seat.rank()] = seat.exchange().window_bytes();
    });
    const std::size_t buffers = 5 * config.depth + 2;
    const std::size_t needed = buffers * buffer_bytes(config);
    for (int rank = 0; rank < kAttention; ++rank) {
      EXPECT_EQ(used[rank].worst, 0u) << rank;
      EXPECT_EQ(used[rank].expected, 0u) << rank;
      EXPECT_EQ(window_bytes(config, kAll, rank).worst, 0u) << rank;
    }
    for (int rank = kAttention; rank < kAll; ++rank) {
      EXPECT_EQ(used[rank].worst, window_bytes(config, kAll, rank).worst) << rank;
      EXPECT_GE(used[rank].worst, needed) << rank;
      EXPECT_LE(used[rank].worst, needed + buffers * (kHugePage + 8 * kPage)) << rank;
    }
  }
}

// Every rank has a control part; only token ranks have lists of the rows that they send.
TEST(Roles, ExpectedBytesAreTheSumOfTheParts) {
  const ExchangeConfig config = split_config(Layout::kExpertMajor);
  const std::size_t whole = window_bytes(config, kAll).expected;
  const std::size_t tokens = window_bytes(config, kAll, 0).expected;
  const std::size_t experts = window_bytes(config, kAll, 4).expected;
  ExchangeConfig idle = config;
  idle.token_ranks = {1};
  const std::size_t control = window_bytes(idle, kAll, 0).expected;  // neither tokens nor experts
  EXPECT_EQ(whole - control, tokens - control + experts - control);
  const std::size_t list = config.max_tokens * config.top_k * 8;
  EXPECT_GE(tokens - control, config.depth * list);
  EXPECT_LE(tokens - control, config.depth * (list + kPage));
  EXPECT_LT(control, 4 * kPage);
}

// What an expert rank reserves grows with the token ranks and not with all ranks.
TEST(Roles, ExpertRanksPayForTokenRanksOnly) {
  ExchangeConfig small = split_config(Layout::kExpertMajor);
  small.max_tokens = 1000;  // so that rows take more than the huge page that they are rounded to
  ExchangeConfig wide = small;
  wide.num_experts = 64;
  wide.expert_ranks.resize(32);
  std::iota(wide.expert_ranks.begin(), wide.expert_ranks.end(), kAttention);
  EXPECT_EQ(window_bytes(wide, kAttention + 32, 3).worst, window_bytes(small, kAll, 3).worst);
  wide.token_ranks = {};
  EXPECT_GT(window_bytes(wide, kAttention + 32, 3).worst, 2 * window_bytes(small, kAll, 3).worst);
}

TEST(Roles, APlacementAloneNeedsNoWindowElsewhere) {
  ExchangeConfig config = split_config(Layout::kExpertMajor);
  config.token_ranks = config.expert_ranks = {};
  config.expert_rank = {3, 3, 3, 3, 4, 4, 4, 4};
  EXPECT_EQ(window_bytes(config, kAll, 0).worst, 0u);
  EXPECT_GT(window_bytes(config, kAll, 3).worst, 0u);
}

TEST(Roles, ARankOutsideIsRefusedByWindowBytes) {
  const ExchangeConfig config = split_config(Layout::kExpertMajor);
  for (const int rank : {-1, kAll}) {
    require_status(error_of([&] { (void)window_bytes(config, kAll, rank); }),
                   Code::kInvalidArgument, {"rank is " + std::to_string(rank), "0 to 4"}, "bytes");
  }
}

ExchangeConfig offender_has_experts() {
  ExchangeConfig config = small_config();
  config.token_ranks = {0, 2};
  config.expert_ranks = {kOffender};
  return config;
}

void give_tokens(DispatchArgs& args, Scratch& scratch) {
  scratch.ids = {0, 1, 2, 3};
  args.tokens = {scratch.memory.data(), 2, 32, DataType::kBf16};
  args.topk_ids = {scratch.ids.data(), 2, kTopK, IndexType::kInt64};
}

TEST(Roles, TokensOfAnotherRankAreRefusedOnAllRanks) {
  for (const Mode mode : {Mode::kProcesses, Mode::kThreads}) {
    try_bad_dispatch(mode, two_rounds(offender_has_experts()),
                     {"TokensWithoutRole",
                      [](DispatchArgs& a, Scratch& s) { give_tokens(a, s); },
                      {"2 tokens on rank 1", "token_ranks [0, 2]"}});
  }
}

TEST(Roles, DispatchedTokensOfAnotherRankAreRefusedByCombine) {
  DispatchArgs dispatched;
  Scratch kept;
  give_tokens(dispatched, kept);
  try_bad_combine(Mode::kThreads, two_rounds(offender_has_experts()),
                  {"TokensWithoutRole",
                   [&](CombineArgs& a, Scratch&) { a.handle = {}, a.dispatched = &dispatched; },
                   {"combine: 2 tokens on rank 1", "token_ranks [0, 2]"}});
}

TEST(Roles, ARankWithoutExpertsAllocatesNoOutputs) {
  const Scenario scenario = plain_scenario(kAll, split_config(Layout::kExpertMajor), 1, 43);
  run_ranks(Mode::kThreads, kAll, [&](Group group) {
    Seat seat(group, scenario);
    OutputRows outputs;
    require_ok(seat.exchange().allocate_outputs(0, 96, DataType::kBf16, outputs), "0 rows");
    outputs.release();
    const Status one = seat.exchange().allocate_outputs(1, 96, DataType::kBf16, outputs);
    if (seat.rank() >= kAttention) return require_ok(one, "a row of an expert rank");
    require_status(one, Code::kInvalidArgument, {"[1, 96]", "0 to 0 rows"}, "a row");
  });
}

// A role names all tensor-parallel ranks of a group, as expert_rank does.
TEST(Roles, RolesOfGroupsAreThoseOfTheirDomain) {
  ExchangeConfig config = split_config(Layout::kExpertMajor);
  config.tp_size = 2;
  config.token_ranks = {0};
  config.expert_ranks = {1, 2};
  for (int rank = 0; rank < 8; ++rank) {
    const bool has_experts = rank >= 2 && rank < 6;
    EXPECT_EQ(window_bytes(config, 8, rank).worst > 0, has_experts) << rank;
  }
  const Scenario scenario = plain_scenario(8, config, 1, 44);  // ranks 6 and 7 have neither
  run_ranks(Mode::kThreads, 8, [&](Group group) {
    Seat seat(group, scenario);
    seat.play(0);
    DispatchCall call = seat.dispatch_call(0);
    Scratch scratch;
    if (seat.rank() == 5) give_tokens(call.args(), scratch);
    if (seat.rank() == 5) call.args().tokens.hidden = config.hidden;
    Received received;
    require_status(seat.exchange().dispatch(call.args(), received),
                   seat.rank() == 5 ? Code::kInvalidArgument : Code::kPeerRejected,
                   {"2 tokens on rank 2 of a domain (tp_size 2)", "token_ranks [0]"}, "dispatch");
  });
}

}  // namespace
}  // namespace ferry::test
