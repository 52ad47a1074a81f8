// Tokens whose rows have all been published are reduced while another rank still computes, and the
// combine has the outcome that it would have without early tokens.
#include <gtest/gtest.h>

#include <numeric>

#include "early_rows.h"
#include "seat.h"
#include "victim.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 3;
constexpr int kLate = 2;  // its outputs come last

// Two rounds.
Scenario early_scenario(const ExchangeConfig& config, int num_ranks, const std::vector<int>& active,
                        std::uint64_t seed) {
  Scenario scenario = plain_scenario(num_ranks, config, 2, seed);
  Random random(seed, 9);
  for (Round& round : scenario.rounds) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      round.inputs[rank].topk_ids = early_ids(config, rank, num_ranks / config.tp_size);
      round.inputs[rank].active_ranks = active;
    }
    expect_dispatch(config, round);
    round.combines = {random_combine(config, round, config.hidden, config.dtype, random)};
  }
  return scenario;
}

// A combine that tells the board once all early tokens are reduced, while the outputs of another
// rank are missing.
Status combine_and_tell(Seat& seat, const Scenario& scenario, CombineCall& call,
                        const SharedBoard& board) {
  const Rows rows(call, scenario.rounds[0].combines[0], seat.rank());
  bool told = false;
  while_waiting = [&] {
    if (!told && rows.early_ones_are_done()) board.tell(), told = true;
  };
  const Status status = seat.exchange().combine(call.args());
  while_waiting = nullptr;
  return status;
}

void await_early_tokens(const SharedBoard& board, int ranks) {
  board.await_told(ranks);
  require(board->told.load(std::memory_order_acquire) == ranks,
          "the others wait with tokens that they could reduce");
}

// Checks that `publish` comes first, then `outputs` and `reduce` alternate without a gap, and that
// all time waited lies in `outputs`.
void check_times(const OperationTimes& times) {
  std::vector<std::string> phases;
  std::int64_t outputs_ns = 0;
  for (std::size_t i = 0; i < times.spans.size(); ++i) {
    const auto& [phase, begin, end] = times.spans[i];
    phases.emplace_back(phase);
    if (phases.back() == "outputs") outputs_ns += end - begin;
    require(begin <= end && (i < 2 || begin == times.spans[i - 1].end_ns), "phases overlap");
  }
  require(phases.size() >= 5 && phases.size() % 2 == 1 && phases[0] == "publish", "phases");
  for (std::size_t i = 1; i < phases.size(); ++i)
    require(phases[i] == (i % 2 == 1 ? "outputs" : "reduce"), "phase " + phases[i]);
  const std::int64_t waited =
      std::accumulate(times.wait_ns.begin(), times.wait_ns.end(), std::int64_t{0});
  require(waited > 0 && waited <= outputs_ns, "waited " + std::to_string(waited) + " ns of " +
                                                  std::to_string(outputs_ns) + " in the phase");
}

class EarlyTokens : public SeatTest {
 protected:
  // The last rank publishes after all others have reduced their early tokens.
  static void run_with_late_rank(const Scenario& scenario) {
    const std::vector<int>& active = scenario.rounds[0].inputs[0].active_ranks;
    const int late = scenario.num_ranks - 1;
    const auto others = static_cast<int>(active.empty() ? scenario.num_ranks : active.size()) - 1;
    const SharedBoard board;
    const auto body = [&](Group, Seat& seat) {
      const Received received = seat.dispatch(0);
      const bool in = scenario.rounds[0].takes_part(seat.rank());
      if (seat.rank() == late) await_early_tokens(board, others);
      if (seat.rank() == late || !in) return seat.combine(0, received.handle);
      CombineCall call = seat.combine_call(0, received.handle);
      require_ok(combine_and_tell(seat, scenario, call, board), "combine");
      call.check("with a late rank");
      check_times(seat.exchange().last_combine_times());
    };
    run(scenario, body, that_look());
  }
};

TEST_P(EarlyTokens, AreReducedWhileAnotherRankComputes) {
  for (const Layout layout : {Layout::kExpertMajor, Layout::kPadded, Layout::kRankMajor}) {
    for (const int workers : {1, 3}) {
      ExchangeConfig config = early_config();
      config.layout = layout;
      config.workers = workers;
      run_with_late_rank(early_scenario(config, kRanks, {}, 81));
    }
  }
}

TEST_P(EarlyTokens, OfAnActiveSet) {
  run_with_late_rank(early_scenario(early_config(), 4, {1, 3, 0}, 82));
}

// A member's rows are there when all of its tp_ranks have published them.
TEST_P(EarlyTokens, OfTensorParallelRanks) {
  ExchangeConfig config = early_config();
  config.tp_size = 2;
  run_with_late_rank(early_scenario(config, 4, {}, 83));
}

TEST_P(EarlyTokens, WithCopyExpertsPartialsAndANorm) {
  ExchangeConfig config = early_config();
  config.special.copy = 1;
  config.combine_wire = CombineWire::kLogfmt10;
  config.hidden = 128;
  Scenario scenario = early_scenario(config, kRanks, {}, 84);
  Round& round = scenario.rounds[0];
  Random random(84, 10);
  for (internal::RankOutput& output : round.combines[0].outputs) {
    const DataType type = output.out_type;
    output.partials = Partials::kPerRank;
    output.residual = random_elements(config.max_tokens * config.hidden, type, random);
    output.gamma = random_elements(config.hidden, type, random);
  }
  expect_combine(config, round, round.combines[0]);
  run_with_late_rank(scenario);
}

TEST_P(EarlyTokens, ALateRankThatRefusesEndsTheCombineOfAll) {
  const Scenario scenario = early_scenario(early_config(), kRanks, {}, 85);
  const SharedBoard board;
  const auto body = [&](Group, Seat& seat) {
    const Received received = seat.dispatch(0);
    const Status why(Code::kInvalidArgument, "no outputs today", kLate);
    if (seat.rank() == kLate) {
      await_early_tokens(board, kRanks - 1);
      require_status(seat.exchange().refuse_combine(why), why.code(), {why.message()}, "refusal");
    } else {
      CombineCall call = seat.combine_call(0, received.handle);
      const Status status = combine_and_tell(seat, scenario, call, board);
      require_status(status, Code::kPeerRejected, {"rank 2", why.message()}, "a late refusal");
      require(status.culprit() == kLate && status.group_usable(), status.message());
    }
    seat.play(1);
  };
  run(scenario, body, that_look());
}

TEST_P(EarlyTokens, ALateRankThatDoesOtherwiseEndsTheCombineOfAll) {
  const Scenario scenario = early_scenario(early_config(), kRanks, {}, 86);
  const SharedBoard board;
  const auto body = [&](Group, Seat& seat) {
    const Received received = seat.dispatch(0);
    CombineCall call = seat.combine_call(0, received.handle);
    const bool late = seat.rank() == kLate;
    if (late) await_early_tokens(board, kRanks - 1);
    if (late) call.args().expert_rows.hidden = 40;
    if (late) call.args().expert_rows.pitch_bytes = 96 * 2;
    const Status status =
        late ? seat.exchange().combine(call.args()) : combine_and_tell(seat, scenario, call, board);
    require_status(status, Code::kMismatch, {"rank 2", "40", "96"}, "a late difference");
    require(status.culprit() == kLate && status.group_usable(), status.message());
    seat.play(1);
  };
  run(scenario, body, that_look());
}

// Rank 0 receives no rows, so it learns only from the records of the others that no weights return.
// Rank 1 has published rows of rank 0's tokens before rank 2 comes.
TEST_P(EarlyTokens, OfWhichNoWeightsReturn) {
  const ExchangeConfig config = early_config();
  Scenario scenario = plain_scenario(kRanks, config, 1, 88);
  Round& round = scenario.rounds[0];
  for (internal::RankInput& input : round.inputs) {
    for (std::int64_t i = 0; i < std::ssize(input.topk_ids); ++i)
      input.topk_ids[i] = i % config.top_k == 0 ? 4 + i % 4 : i % 40 == 1 ? 8 : -1;
  }
  expect_dispatch(config, round);
  Random random(88, 9);
  round.combines = {random_combine(config, round, config.hidden, config.dtype, random)};
  run(scenario, [&](Group group, Seat& seat) {
    const Received received = seat.dispatch(0);
    CombineCall call = seat.combine_call(0, received.handle);
    call.args().row_weights = nullptr;
    call.args().out_topk_weights = nullptr;
    std::vector<float> weights(config.max_tokens * config.top_k, -1.0F);
    const bool asks = seat.rank() == 0;
    if (asks) call.args().out_topk_weights = weights.data();
    if (seat.rank() == kLate) nap(100);
    const Status status = seat.exchange().combine(call.args());
    if (!asks) return require_ok(status, "combine"), require_ok(group.barrier(), "barrier");
    require_status(status, Code::kInvalidArgument, {"no rank gave any"}, "weights");
    for (const float weight : weights) require(weight == -1.0F, "a weight of nobody is written");
    require_ok(group.barrier(), "barrier");
  });
}

// Rank 1's rows are not where those of rank 0 would be, and rank 0 knows before rank 2 has come.
class UnreadableRows : public EarlyTokens {
 protected:
  using Calls = std::function<Status(Seat&, CombineCall&)>;

  static void run_with(const Calls& of_rank_1, Code code, const std::vector<std::string>& parts) {
    const Scenario scenario = early_scenario(early_config(), kRanks, {}, 87);
    const SharedBoard board;
    const auto body = [&](Group, Seat& seat) {
      const Received received = seat.dispatch(0);
      CombineCall call = seat.combine_call(0, received.handle);
      const Rows rows(call, scenario.rounds[0].combines[0], seat.rank());
      std::string wrong;
      int looks = 0;
      while_waiting = [&] {
        const bool published = board->told.load(std::memory_order_acquire) > 0;
        if (seat.rank() == 0 && (!published || ++looks != 3)) return;
        if (seat.rank() == 0) wrong = read_of(rows, scenario);
        if (seat.rank() == 0 || looks++ == 0) board.tell();
      };
      if (seat.rank() == kLate) await_early_tokens(board, 2);
      if (seat.rank() == kLate) while_waiting = nullptr;
      const Status status =
          seat.rank() == 1 ? of_rank_1(seat, call) : seat.exchange().combine(call.args());
      while_waiting = nullptr;
      require(wrong.empty(), wrong);
      if (seat.rank() != 1) require_status(status, code, parts, "unreadable rows");
      require(!status.ok() && status.group_usable(), status.message());
      seat.play(1);
    };
    run(scenario, body, that_look());
  }

 private:
  static std::string read_of(const Rows& rows, const Scenario& scenario) {
    const internal::RankInput& input = scenario.rounds[0].inputs[0];
    for (std::int64_t i = 0; i < std::ssize(input.topk_ids); ++i) {
      const std::int64_t token = i / scenario.config.top_k;
      if (input.topk_ids[i] >= 4 && !rows.untouched(token))
        return "token " + std::to_string(token) + " is reduced without its rows";
    }
    return "";
  }
};

TEST_P(UnreadableRows, OfARankThatRefused) {
  const auto refuses = [](Seat& seat, CombineCall&) {
    return seat.exchange().refuse_combine({Code::kInvalidArgument, "not today", 1});
  };
  run_with(refuses, Code::kPeerRejected, {"rank 1", "not today"});
}

TEST_P(UnreadableRows, OfAnotherHidden) {
  const auto narrower = [](Seat& seat, CombineCall& call) {
    call.args().expert_rows.hidden = 40;
    call.args().expert_rows.pitch_bytes = 96 * 2;
    return seat.exchange().combine(call.args());
  };
  run_with(narrower, Code::kMismatch, {"rank 1", "40", "96"});
}

TEST_P(UnreadableRows, OfARankThatDispatches) {
  const auto dispatches = [](Seat& seat, CombineCall&) {
    const DispatchCall call = seat.dispatch_call(1);
    Received none;
    return seat.exchange().dispatch(call.args(), none);
  };
  run_with(dispatches, Code::kMismatch, {"rank 1", "dispatch"});
}

INSTANTIATE_TEST_SUITE_P(Threads, EarlyTokens, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, EarlyTokens, testing::Values(Mode::kProcesses));
INSTANTIATE_TEST_SUITE_P(Threads, UnreadableRows, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, UnreadableRows, testing::Values(Mode::kProcesses));

TEST(EarlyTokenFaults, ARankThatDiesAfterOthersReducedIsNamed) {
  if (test_nodes(kRanks).several())
    GTEST_SKIP() << "between nodes no token is reduced while outputs are missing";
  const Scenario scenario = early_scenario(early_config(), kRanks, {}, 88);
  const SharedBoard board;
  ProcessRanks ranks(kRanks, that_look(), [&](Group group) {
    Seat seat(group, scenario);
    const Received received = seat.dispatch(0);
    if (seat.rank() == kLate) {
      await_early_tokens(board, kRanks - 1);
      strike_self(*board, SIGKILL);
    }
    CombineCall call = seat.combine_call(0, received.handle);
    const Status status = combine_and_tell(seat, scenario, call, board);
    require_status(status, Code::kPeerLost, {"outputs", "rank 2", "dead"}, "combine");
    require(status.culprit() == kLate && !status.group_usable(), status.message());
  });
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
  EXPECT_EQ(ends[kLate].signal, SIGKILL);
  ends[kLate] = {};
  expect_all_well(ends, "a death");
}

}  // namespace
}  // namespace ferry::test
