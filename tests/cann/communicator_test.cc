// A communicator over several calls: waits per source, ranks that disagree, exchanges that are
// made, reused and replaced, and rows in place.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "cann/exchange_cache.h"
#include "operator_case.h"
#include "small_call.h"

namespace ferry::test {
namespace {

constexpr int kRanks = SmallCall::kRanks;
constexpr std::int64_t kLateUs = 80'000;
const cann::CommunicatorOptions kNames = {.group_ep = "ep", .group_tp = "tp"};

// Runs a test on every rank, with the legal call of the rank.
void on_ranks(
    const std::function<void(const cann::Communicator&, SmallCall& call, int rank)>& body) {
  run_ranks(Mode::kThreads, kRanks, [&](Group group) {
    const int rank = group.rank();
    const cann::Communicator communicator(std::move(group), kNames);
    SmallCall call(rank);
    body(communicator, call, rank);
  });
}

// On a busy machine another rank can be later, but not in every round.
TEST(PerformanceInfo, NamesTheLateRank) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    cann::DispatchArgs args = call.dispatch(rank);
    require_success(moe_distribute_dispatch(communicator, args), "the first, which makes it");
    args.performance_info = call.waits;
    std::int64_t longest = 0;
    for (int round = 0; round < 3; ++round) {
      call.waits.assign(kRanks, 0);
      if (rank == 2) std::this_thread::sleep_for(std::chrono::microseconds(kLateUs));
      const auto began = std::chrono::steady_clock::now();
      require_success(moe_distribute_dispatch(communicator, args), "dispatch");
      const auto took = std::chrono::duration_cast<std::chrono::microseconds>(
          std::chrono::steady_clock::now() - began);
      const auto sum = std::accumulate(call.waits.begin(), call.waits.end(), std::int64_t{0});
      require(sum <= took.count(), "waits of " + std::to_string(sum) + " us in a call of " +
                                       std::to_string(took.count()));
      longest = std::max(longest, call.waits[2]);
    }
    require(rank == 2 || longest >= kLateUs / 2, "rank 2 was late: " + std::to_string(longest));
  });
}

TEST(PerformanceInfo, IsAMaximumNotASum) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    cann::DispatchArgs args = call.dispatch(rank);
    args.performance_info = call.waits;
    call.waits.assign(kRanks, 100'000'000);
    for (int round = 0; round < 2; ++round) {
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      require_success(moe_distribute_dispatch(communicator, args), "dispatch");
    }
    for (const std::int64_t wait : call.waits) require(wait == 100'000'000, "the maximum stays");
  });
}

TEST(PerformanceInfo, IsThatOfCombineToo) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    require_success(moe_distribute_dispatch(communicator, call.dispatch(rank)), "dispatch");
    cann::CombineArgs args = call.combine(rank);
    args.performance_info = call.waits;
    for (int round = 0; round < 3; ++round) {
      if (rank == 1) std::this_thread::sleep_for(std::chrono::microseconds(kLateUs));
      require_success(moe_distribute_combine(communicator, args), "combine");
    }
    require(rank == 1 || call.waits[1] >= kLateUs / 2, "rank 1 was late");
  });
}

TEST(Disagreement, OfAttributesIsToldOnAllRanks) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    cann::DispatchArgs args = call.dispatch(rank);
    if (rank == 1) args.attributes.moe_expert_num = 7;
    const cann::Result result = moe_distribute_dispatch(communicator, args);
    require(result.code == cann::StatusCode::kInvalidParameter, result.message());
    for (const char* part : {"moe_expert_num is 6 and 7", "different exchanges"})
      require(contains(result.message(), part), result.message());
    require(result.status.group_usable(), "the group is usable");
    require_success(moe_distribute_dispatch(communicator, call.dispatch(rank)), "after it");
  });
}

// One rank alone needs a new exchange, while the others use the exchange that they have.
TEST(Disagreement, OfOneRankWithTheExchangeOfTheOthers) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    require_success(moe_distribute_dispatch(communicator, call.dispatch(rank)), "the first");
    cann::DispatchArgs experts = call.dispatch(rank), mode = experts, hidden = experts;
    experts.attributes.moe_expert_num = 7;
    mode.quant_mode = 2;
    hidden.x.hidden = SmallCall::kH - 1;
    const std::pair<cann::DispatchArgs, const char*> odd_ones[] = {
        {experts, ": moe_expert_num is 7 and 6"},
        {mode, ": quant_mode is 2 and none"},
        {hidden, ": H is 15 and 16"}};
    for (const auto& [odd, difference] : odd_ones) {
      const cann::Result result =
          moe_distribute_dispatch(communicator, rank == 1 ? odd : call.dispatch(rank));
      require(result.status.code() == Code::kMismatch && result.status.culprit() == 1 &&
                  result.message().ends_with(difference),
              result.message());
      require(result.status.group_usable(), "the group is usable");
      require_success(moe_distribute_dispatch(communicator, call.dispatch(rank)), "after it");
    }
  });
}

// Each rank has an exchange for its call, and they are two.
TEST(Disagreement, OfRanksThatUseExchangesThatExist) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    cann::DispatchArgs plain = call.dispatch(rank), quantised = plain;
    quantised.quant_mode = 2;
    quantised.expand_x.dtype = DataType::kInt8;
    for (const auto& last : {plain, quantised, plain}) {
      require_success(moe_distribute_dispatch(communicator, quantised), "quantised");
      require_success(moe_distribute_dispatch(communicator, last), "the last");
      const cann::Result result =
          moe_distribute_dispatch(communicator, rank == 1 ? quantised : plain);
      require(result.status.code() == Code::kMismatch && result.status.culprit() == 1 &&
                  result.message().ends_with(": quant_mode is 2 and none"),
              result.message());
      require(result.status.group_usable(), "the group is usable");
    }
    require_success(moe_distribute_combine(communicator, call.combine(rank)), "combine");
  });
}

// Calls of all ranks, and of ranks 0 and 2, in two modes: rank 1 is left out of the latter, and
// makes the same calls.
struct LeftOut {
  explicit LeftOut(SmallCall& call, int rank) : all(call.dispatch(rank)), all_wide(all) {
    for (std::int32_t& id : call.ids) id %= 4;
    all_wide.quant_mode = 2;
    all_wide.expand_x.dtype = DataType::kInt8;
    remaining = all, wide = all_wide;
    remaining.elastic_info = wide.elastic_info = elastic;
  }
  std::vector<std::int32_t> elastic = {1, 2, 0, 4, 0, -1, 1, 0, 2, -1};
  cann::DispatchArgs all, all_wide, remaining, wide;
};

// Rank 1 is left out, and its calls return at once. It cannot send its settings, so ranks are named
// only.
TEST(Disagreement, OfRanksThatRemainNamesThem) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    const LeftOut calls(call, rank);
    const auto differ = [&](const cann::DispatchArgs& others, const cann::DispatchArgs& odd) {
      const cann::Result result = moe_distribute_dispatch(communicator, rank == 2 ? odd : others);
      if (rank == 1) return require_success(result, "left out");
      require(result.status.code() == Code::kMismatch && result.status.culprit() == 2 &&
                  contains(result.message(), "ranks 2 and 0 differ in this dispatch"),
              result.message());
    };
    require_success(moe_distribute_dispatch(communicator, calls.all_wide), "quantised");
    require_success(moe_distribute_dispatch(communicator, calls.all), "plain");
    for (int round = 0; round < 2; ++round) {
      differ(calls.remaining, calls.wide);
      cann::DispatchArgs more = calls.remaining;
      more.attributes.global_bs = 30;
      differ(calls.remaining, more);
      require_success(moe_distribute_dispatch(communicator, calls.remaining),
                      "the remaining ranks");
      require_success(moe_distribute_dispatch(communicator, calls.wide), "and quantised");
      require_success(moe_distribute_dispatch(communicator, calls.all), "all ranks again");
    }
  });
}

// Rank 1 is left out and makes the call, so it goes to the exchange that the call needs. The other
// ranks go there too, whatever becomes of their call.
TEST(LeftOutRank, ComesBackAfterAChangeOfTheExchangeThatARankRefused) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    const LeftOut calls(call, rank);
    cann::DispatchArgs more = calls.remaining;  // needs an exchange that none has
    more.attributes.global_bs = 120;
    require_success(moe_distribute_dispatch(communicator, calls.all_wide), "quantised");
    require_success(moe_distribute_dispatch(communicator, calls.all), "plain");
    for (const auto& [args, makes] : {std::pair(calls.wide, false), std::pair(more, true)}) {
      cann::DispatchArgs bad = args;
      if (rank == 2) bad.attributes.moe_expert_num = -1;
      const cann::Result result = moe_distribute_dispatch(communicator, bad);
      const Code expected = rank == 2             ? Code::kInvalidArgument
                            : rank == 1 && !makes ? Code::kOk
                                                  : Code::kPeerRejected;
      require(result.status.code() == expected && result.status.group_usable(), result.message());
      require(expected != Code::kPeerRejected || contains(result.message(), "moe_expert_num is -1"),
              result.message());
      require_success(moe_distribute_dispatch(communicator, calls.all), "all ranks");
      require_success(moe_distribute_dispatch(communicator, args), "rank 1 is left out");
      require_success(moe_distribute_dispatch(communicator, calls.all), "all ranks again");
    }
  });
}

// Rank 0 and the rank that is left out make one call, rank 2 another one.
TEST(LeftOutRank, ComesBackAfterAChangeOfTheExchangeInWhichSettingsDiffered) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    const LeftOut calls(call, rank);
    require_success(moe_distribute_dispatch(communicator, calls.all_wide), "quantised");
    require_success(moe_distribute_dispatch(communicator, calls.all), "plain");
    for (int round = 0; round < 2; ++round) {
      const cann::Result result =
          moe_distribute_dispatch(communicator, rank == 2 ? calls.remaining : calls.wide);
      require(result.status.code() == (rank == 1 ? Code::kOk : Code::kMismatch) &&
                  result.status.group_usable(),
              result.message());
      require_success(moe_distribute_dispatch(communicator, calls.all), "all ranks");
    }
  });
}

// The result is the same without an exchange, with one that is large enough, and with one that is
// not.
TEST(Disagreement, OfBatchesIsTheSameAnswerAlways) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    const auto refused = [&](std::int64_t global_bs, std::int64_t bs, const char* difference) {
      cann::DispatchArgs args = call.dispatch(rank);
      if (rank == 1) {
        args.attributes.global_bs = global_bs;
        args.x.num_rows = args.expert_ids.rows = bs;
      }
      const cann::Result result = moe_distribute_dispatch(communicator, args);
      require(result.status.code() == Code::kMismatch && contains(result.message(), difference),
              result.message());
    };
    const std::int64_t bs = SmallCall::kBs;
    for (const std::int64_t made_for : {0, 30, 120}) {
      refused(30, bs, "global_bs is");
      refused(0, bs - 1, "Bs is");
      cann::DispatchArgs all = call.dispatch(rank);
      all.attributes.global_bs = made_for;
      require_success(moe_distribute_dispatch(communicator, all), "all alike");
    }
  });
}

TEST(Disagreement, OfOperatorsNamesThem) {
  run_ranks(Mode::kThreads, kRanks, [](Group group) {
    const int rank = group.rank();
    const cann::Communicator communicator(std::move(group), kNames);
    for (const char* said :
         {": operator is dispatch and combine", "rank 1 called combine, rank 0 called dispatch"}) {
      SmallCall call(rank);
      call.ep_counts.assign(call.ep_counts.size(), 0);
      const cann::Result result = rank == 1
                                      ? moe_distribute_combine(communicator, call.combine(rank))
                                      : moe_distribute_dispatch(communicator, call.dispatch(rank));
      require(result.status.code() == Code::kMismatch && contains(result.message(), said),
              result.message());
      require_success(moe_distribute_dispatch(communicator, call.dispatch(rank)), "after it");
    }
  });
}

// Scales of the caller travel with the tokens: a rank without tokens takes those of the others.
TEST(EmptyRank, TakesPartWithAnyScales) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    cann::DispatchArgs args = call.dispatch(rank);
    args.attributes.global_bs = SmallCall::kBs * kRanks;
    if (rank == 1) args.x.num_rows = args.expert_ids.rows = 0;
    const cann::DispatchArgs plain = args;
    for (const std::int64_t columns : {3, 0, 7, 1}) {
      args.scales = {call.factors.data(), SmallCall::kBs, 3};
      if (rank == 1) args.scales = {nullptr, 0, columns};
      require_success(moe_distribute_dispatch(communicator, args), "scales of 3 columns");
    }
    require_success(moe_distribute_dispatch(communicator, plain), "no scales");
    args.scales.columns = 3;
    require_success(moe_distribute_dispatch(communicator, args), "3 columns again");
  });
}

TEST(EmptyRank, TakesPartWithAnyScalesWhereARankIsLeftOut) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    LeftOut calls(call, rank);
    const auto dispatch = [&](cann::DispatchArgs args, std::int64_t columns) {
      args.attributes.global_bs = SmallCall::kBs * kRanks;
      args.scales = {call.factors.data(), SmallCall::kBs, columns};
      if (rank == 2) args.x.num_rows = args.expert_ids.rows = 0, args.scales = {nullptr, 0, 1};
      require_success(moe_distribute_dispatch(communicator, args),
                      std::to_string(columns) + " columns");
    };
    for (const std::int64_t columns : {3, 7}) dispatch(calls.all, columns);
    for (const std::int64_t columns : {3, 7, 3}) dispatch(calls.remaining, columns);
    for (const std::int64_t columns : {7, 3}) dispatch(calls.all, columns);
  });
}

TEST(EmptyRank, MayBeEveryRankWithScalesThatDiffer) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    LeftOut calls(call, rank);
    cann::DispatchArgs empty = calls.all;
    empty.attributes.global_bs = calls.all_wide.attributes.global_bs = SmallCall::kBs * kRanks;
    empty.x.num_rows = empty.expert_ids.rows = 0;
    for (int round = 0; round < 3; ++round) {
      require_success(moe_distribute_dispatch(communicator, calls.all_wide), "quantised");
      empty.scales = {nullptr, 0, (rank + round) % 3};
      require_success(moe_distribute_dispatch(communicator, empty), "no token on any rank");
    }
  });
}

// Every expert has as many rows as before, but the rows are of other tokens.
TEST(Disagreement, OfIdsAndTripletsNamesTokenAndK) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    require_success(moe_distribute_dispatch(communicator, call.dispatch(rank)), "dispatch");
    if (rank == 1) std::swap(call.ids[2], call.ids[7]);
    const cann::Result result = moe_distribute_combine(communicator, call.combine(rank));
    require(result.status.code() == Code::kMismatch && result.status.culprit() == 1 &&
                contains(result.message(), "rank 1, token 3, k 1 went to expert 2") &&
                contains(result.message(), "the id is 3"),
            result.message());
    if (rank == 1) std::swap(call.ids[2], call.ids[7]);
    require_success(moe_distribute_combine(communicator, call.combine(rank)), "after it");
  });
}

// 256 + 1 + 1 in bf16: 258 when it is rounded once, 256 when the first host's sum is rounded.
TEST(CommAlg, FullmeshSumsInKOrderAndRoundsOnceBetweenHostsToo) {
  const auto body = [](Group group) {
    const int rank = group.rank();
    const cann::Communicator communicator(std::move(group), kNames);
    SmallCall call(rank);
    call.ids = {0, 1, 2}, call.weights = {1, 1, 1};
    cann::DispatchArgs args = call.dispatch(rank);
    args.attributes.ep_world_size = args.attributes.moe_expert_num = 4;
    args.attributes.comm_alg = "fullmesh";
    args.x.num_rows = 1, args.expert_ids = {call.ids.data(), 1, 3};
    require_success(moe_distribute_dispatch(communicator, args), "dispatch");
    cann::CombineArgs combine = call.combine(rank);
    combine.attributes = args.attributes;
    combine.expert_ids = args.expert_ids, combine.expert_scales = {call.weights.data(), 1, 3};
    auto* rows = reinterpret_cast<std::uint16_t*>(call.zeros.data());
    std::fill_n(rows, 4 * SmallCall::kH, rank == 0 ? 0x4380 : 0x3f80);  // 256, 1
    combine.x_out.num_rows = 1;
    require_success(moe_distribute_combine(communicator, combine), "combine");
    const auto* sums = reinterpret_cast<const std::uint16_t*>(call.x_out.data());
    for (int i = 0; i < SmallCall::kH; ++i)
      require(sums[i] == 0x4381, "258, not " + std::to_string(sums[i]));
  };
  run_ranks(Mode::kThreads, 4, body, "", {.topology = "host:2,rank:2"});
}

// A front refuses a call: before there is an exchange; while the others use an exchange that is not
// the one used last; and while the others make another exchange.
TEST(Refusal, OfAFrontAboveMeetsTheOthers) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    cann::DispatchArgs plain = call.dispatch(rank), quantised = plain;
    quantised.quant_mode = 2;
    quantised.expand_x.dtype = DataType::kInt8;
    const auto refused = [&](const cann::DispatchArgs& args) {
      const Status why(Code::kInvalidArgument, "a tensor that cannot be read");
      const cann::Result result = rank == 1 ? refuse_dispatch(communicator, args, why)
                                            : moe_distribute_dispatch(communicator, args);
      require(result.status.code() == (rank == 1 ? Code::kInvalidArgument : Code::kPeerRejected) &&
                  contains(result.message(), why.message()),
              result.message());
    };
    for (int round = 0; round < 2; ++round) {
      refused(plain);
      require_success(moe_distribute_dispatch(communicator, plain), "plain");
      refused(quantised);
      require_success(moe_distribute_dispatch(communicator, quantised), "quantised");
    }
    const cann::CombineArgs combine = call.combine(rank);
    const Status why(Code::kInvalidArgument, "no rows");
    const cann::Result result = rank == 1 ? refuse_combine(communicator, combine, why)
                                          : moe_distribute_combine(communicator, combine);
    require(contains(result.message(), "no rows"), result.message());
    require_success(moe_distribute_combine(communicator, combine), "combine");
  });
}

// Counts that do not fit the ids: the error names the rank that gave them, on all ranks.
TEST(Disagreement, OfCountsAndIdsIsToldOnAllRanks) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    require_success(moe_distribute_dispatch(communicator, call.dispatch(rank)), "dispatch");
    const std::int32_t rows = call.ep_counts[5];
    if (rank == 1) ++call.ep_counts[5];
    const cann::Result result = moe_distribute_combine(communicator, call.combine(rank));
    require(result.code == cann::StatusCode::kInvalidParameter, result.message());
    require(result.status.culprit() == 1 && contains(result.message(), "rank 1 gave 13"),
            result.message());
    call.ep_counts[5] = rows;
    require_success(moe_distribute_combine(communicator, call.combine(rank)), "after it");
  });
}

TEST(Overflow, DuplicatesBeyondAAreAnErrorAndNothingIsWritten) {
  on_ranks([](const cann::Communicator& communicator, SmallCall& call, int rank) {
    cann::DispatchArgs args = call.dispatch(rank);
    args.attributes.moe_expert_num = kRanks;  // one expert each: A is one row per token
    args.expand_x.num_rows = max_rows(args);
    call.ids.assign(call.ids.size(), 0);
    const cann::Result result = moe_distribute_dispatch(communicator, args);
    if (rank == 0) {
      require(result.code == cann::StatusCode::kTilingError, result.message());
      for (const char* part : {"30 rows", "room for 15", "the same expert id twice"})
        require(contains(result.message(), part), result.message());
      require(call.untouched(), "nothing is written");
    } else {
      require_success(result, "the others have room");
    }
    require_success(moe_distribute_dispatch(communicator, SmallCall(rank).dispatch(rank)), "after");
  });
}

// Growing batches with global_bs 0 need new exchanges, which replace the smaller ones. Exchanges of
// different modes exist at the same time. Rows stay in place where they are not quantised.
TEST(Exchanges, AreMadeForWhatIsAskedAndUsedAgain) {
  const std::pair<int, int> modes[] = {{0, 0}, {2, 0}, {2, 2}, {0, 2}, {3, 2}, {2, 2}, {0, 0}};
  run_ranks(Mode::kThreads, 2, [&](Group group) {
    const int rank = group.rank();
    const cann::Communicator communicator(std::move(group), kNames);
    for (const auto& [quant_mode, comm_quant_mode] : modes) {
      for (const std::int64_t bs : {1, 16, 17, 40, 3}) {
        OperatorCase c;
        c.ep = 2, c.moe = 4, c.k = 2, c.h = 32;
        c.quant_mode = quant_mode;
        c.comm_quant_mode = comm_quant_mode;
        c.views = quant_mode == 0;
        c.seed = 50 + bs;
        fill_inputs(c, {bs, bs});
        const PreparedCase prepared = prepare(c);
        play(prepared, communicator, rank);
        play(prepared, communicator, rank);
      }
    }
  });
}

// The second pair of a quantised dispatch and a quantised combine has one exchange for both.
TEST(Exchanges, AreSharedByAPair) {
  run_ranks(Mode::kThreads, 2, [&](Group group) {
    const int rank = group.rank();
    const cann::Communicator communicator(std::move(group), kNames);
    OperatorCase c;
    c.ep = 2, c.moe = 4, c.k = 2, c.h = 32;
    c.quant_mode = c.comm_quant_mode = 2;
    fill_inputs(c, {5, 5});
    const PreparedCase prepared = prepare(c);
    for (int pair = 0; pair < 3; ++pair) play(prepared, communicator, rank);
    const ExchangeStats stats = communicator.cache()->last().stats();
    require(stats.combines == 3 && stats.dispatches == 2,
            std::to_string(stats.dispatches) + " dispatches, " + std::to_string(stats.combines) +
                " combines");
  });
}

TEST(Communicator, MadeByDefaultIsAnErrorNotACrash) {
  const cann::Communicator nothing;
  SmallCall call(0);
  const cann::Result result = moe_distribute_dispatch(nothing, call.dispatch(0));
  EXPECT_EQ(result.code, cann::StatusCode::kRuntimeError);
  EXPECT_EQ(result.status.code(), Code::kClosed);
}

TEST(StatusCodes, AreTheOperators) {
  EXPECT_EQ(static_cast<int>(cann::status_code(Code::kOk)), 0);
  EXPECT_EQ(static_cast<int>(cann::status_code(Code::kInvalidArgument)), 161002);
  EXPECT_EQ(static_cast<int>(cann::status_code(Code::kMismatch)), 161002);
  EXPECT_EQ(static_cast<int>(cann::status_code(Code::kPeerRejected)), 561002);
  EXPECT_EQ(static_cast<int>(cann::status_code(Code::kCapacity)), 561002);
  for (const Code code :
       {Code::kPeerLost, Code::kTimeout, Code::kBroken, Code::kClosed, Code::kSystem})
    EXPECT_EQ(static_cast<int>(cann::status_code(code)), 361001);
}

}  // namespace
}  // namespace ferry::test
