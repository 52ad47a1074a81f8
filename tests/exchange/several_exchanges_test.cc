// Several exchanges on one group, interleaved and at the same time, with the group's own barrier
// and all-gather between.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "exchange/workers/learned_stores.h"
#include "seat.h"
#include "topology/caches.h"

namespace ferry::test {
namespace {

class SeveralExchanges : public testing::TestWithParam<Mode> {};

TEST_P(SeveralExchanges, InterleavedOnOneGroup) {
  constexpr int kRanks = 3, kRounds = 12;
  ExchangeConfig config = {.max_tokens = 16, .hidden = 40, .num_experts = 7, .top_k = 3};
  const Scenario first = plain_scenario(kRanks, config, kRounds, 61);
  config.layout = Layout::kRankMajor;
  config.dtype = DataType::kFp32;
  config.hidden = 33;
  const Scenario second = plain_scenario(kRanks, config, kRounds, 62);
  run_ranks(GetParam(), kRanks, [&](Group group) {
    Seat a(group, first), b(group, second);
    for (int round = 0; round < kRounds; ++round) {
      const Operation sent_a = a.dispatch_send(round);
      const Operation sent_b = b.dispatch_send(round);
      // Receive halves may come in another order on each rank.
      const bool b_first = (round + group.rank()) % 2 == 0;
      Received of_b = b_first ? b.dispatch_recv(round, sent_b) : Received{};
      Received of_a = a.dispatch_recv(round, sent_a);
      if (!b_first) of_b = b.dispatch_recv(round, sent_b);
      const Seat::PendingCombine back_a = a.combine_send(round, of_a.handle, &of_a);
      b.combine(round, of_b.handle, &of_b);
      a.combine_recv(back_a);
      if (round % 3 == 0) require_ok(group.barrier(), "barrier");
    }
  });
}

// One caller per exchange; each rank has a thread for each.
TEST_P(SeveralExchanges, AtTheSameTimeOnTwoThreadsOfEachRank) {
  constexpr int kRanks = 3;
  const Scenario scenarios[] = {make_scenario(kRanks, 6301, {.max_rounds = 20}),
                                make_scenario(kRanks, 6302, {.max_rounds = 20})};
  run_ranks(GetParam(), kRanks, [&](Group group) {
    Exchange exchanges[] = {Exchange(group, scenarios[0].config),
                            Exchange(group, scenarios[1].config)};
    std::string failures[2];
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        try {
          play(exchanges[i], group.rank(), scenarios[i], {.halves = true, .delays = true});
        } catch (const std::exception& error) {
          failures[i] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    require(failures[0].empty() && failures[1].empty(), failures[0] + " | " + failures[1]);
  });
}

TEST_P(SeveralExchanges, OneAfterTheOther) {
  constexpr int kRanks = 4;
  std::vector<Scenario> scenarios;
  for (std::uint64_t seed = 6400; seed < 6410; ++seed)
    scenarios.push_back(make_scenario(kRanks, seed));
  run_ranks(GetParam(), kRanks, [&](Group group) {
    for (const Scenario& scenario : scenarios) play(group, scenario, {.halves = true});
  });
}

// The rows do not fit the private caches, so the first exchange tries both kinds of stores; between
// nodes none does.
TEST_P(SeveralExchanges, ALaterOneTriesNoStores) {
  constexpr int kRanks = 5;
  constexpr std::int64_t kTokens = 64, kTopK = 8, kRows = kRanks * kTokens * kTopK;
  const auto fit = static_cast<std::int64_t>(kRanks * internal::private_cache_bytes());
  const ExchangeConfig config = {
      .max_tokens = kTokens, .hidden = fit / kRows, .num_experts = 10, .top_k = kTopK};
  const std::vector<std::uint16_t> tokens(kTokens * config.hidden);  // bf16: rows of 2 * fit bytes
  // By this test on threads, before it runs on processes that inherit the result.
  const bool learned =
      internal::LearnedStores::of_groups(kRanks)
          .find(std::bit_width(static_cast<std::uint64_t>(2 * kRows * config.hidden)))
          .has_value();
  std::vector<std::int32_t> ids(kTokens * kTopK);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i % kTopK);
  run_ranks(GetParam(), kRanks, [&](Group group) {
    const auto count_trials = [&](Exchange& exchange, int dispatches) {
      int trials = 0;
      for (int i = 0; i < dispatches; ++i) {
        Received received;
        const DispatchArgs args = {
            .tokens = {tokens.data(), kTokens, config.hidden, DataType::kBf16, 0},
            .topk_ids = {ids.data(), kTokens, kTopK, IndexType::kInt32}};
        require_ok(exchange.dispatch(args, received), "dispatch");
        trials += exchange.last_dispatch_times().store_trial ? 1 : 0;
      }
      return trials;
    };
    Exchange first(group, config), second(group, config);
    const int trials = count_trials(first, 2 * 16 + 1);
    const bool one_node = group.topology().num_nodes() == 1;
    require(learned || !one_node ? trials == 0 : trials == 16 || trials == 32,
            fmt::format("{} trials", trials));
    require(count_trials(second, 1) == 0, "the second exchange tries stores");
  });
}

TEST_P(SeveralExchanges, BarrierAndAllGatherOfTheGroup) {
  constexpr int kRanks = 4;
  run_ranks(GetParam(), kRanks, [&](Group group) {
    for (const std::size_t bytes : {0, 1, 7, 4000, 5000, 100'000}) {
      std::vector<unsigned char> mine(bytes + 1), all(bytes * kRanks + 1, 0xa5), expected;
      std::iota(mine.begin(), mine.end(), static_cast<unsigned char>(group.rank() * 31));
      for (int rank = 0; rank < kRanks; ++rank) {
        std::vector<unsigned char> theirs(bytes);
        std::iota(theirs.begin(), theirs.end(), static_cast<unsigned char>(rank * 31));
        expected.insert(expected.end(), theirs.begin(), theirs.end());
      }
      expected.push_back(0xa5);
      if (group.rank() == static_cast<int>(bytes % kRanks)) nap(3);
      require_ok(group.all_gather(mine.data(), bytes, all.data()), "all_gather");
      require_equal<unsigned char>(all, expected,
                                   "all_gather of " + std::to_string(bytes) + " bytes");
      require_ok(group.barrier(), "barrier");
    }
  });
}

TEST_P(SeveralExchanges, SixtyFourRanks) {
  if (GetParam() == Mode::kProcesses) GTEST_SKIP() << "64 ranks are tried as threads";
  ExchangeConfig config = {.max_tokens = 3, .hidden = 16, .num_experts = 100, .top_k = 4};
  const Scenario scenario = plain_scenario(64, config, 3, 65);
  run_scenario(GetParam(), scenario, {});
}

INSTANTIATE_TEST_SUITE_P(Threads, SeveralExchanges, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, SeveralExchanges, testing::Values(Mode::kProcesses));

}  // namespace
}  // namespace ferry::test
