// ferry::Layer: the results of the three calls bit for bit, in one batch and in two; which experts
// are called together, also before all rows have arrived; calls that throw, and ranks that die in a
// call.
#include "ferry/layer.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include "collectives/refused_memory.h"
#include "seat.h"
#include "victim.h"

namespace ferry::test {
namespace {

ExchangeConfig layer_config() {
  ExchangeConfig config;
  config.max_tokens = 37;
  config.hidden = 24;
  config.num_experts = 12;
  config.top_k = 4;
  config.dtype = DataType::kFp32;
  return config;
}

// Expert e multiplies by e + 1.
void multiply(const std::byte* in, int expert, std::int64_t elements, std::byte* out) {
  for (std::int64_t i = 0; i < elements; ++i) {
    float value = 0;
    std::memcpy(&value, in + i * sizeof value, sizeof value);
    value *= static_cast<float>(expert + 1);
    std::memcpy(out + i * sizeof value, &value, sizeof value);
  }
}

// A rank's layer, its memory, and what must come out of it.
class LayerSeat {
 public:
  LayerSeat(const Group& group, const Scenario& scenario)
      : rank_(group.rank()),
        num_local_(scenario.config.num_experts / scenario.num_ranks),
        scenario_(scenario),
        layer_(group, scenario.config),
        out_(bytes_of(scenario.rounds[0].inputs[rank_])) {}

  Experts multiplies() const {
    return [this](std::span<const ExpertRows> ready) {
      for (const ExpertRows& each : ready)
        multiply(static_cast<const std::byte*>(each.rows.data), rank_ * num_local_ + each.expert,
                 each.rows.num_rows * each.rows.hidden, static_cast<std::byte*>(each.out));
    };
  }

  LayerArgs args(bool two_batches) {
    const internal::RankInput& input = scenario_.rounds[round_].inputs[rank_];
    const ExchangeConfig& config = scenario_.config;
    return {.tokens = {input.tokens.data(), input.num_tokens, config.hidden, config.dtype, 0},
            .topk_ids = {input.topk_ids.data(), input.num_tokens, config.top_k, IndexType::kInt64},
            .topk_weights = input.topk_weights.data(),
            .out = out_.data(),
            .out_type = DataType::kFp32,
            .replica_table = input.replica_table.empty() ? nullptr : input.replica_table.data(),
            .active_ranks = input.active_ranks,
            .two_batches = two_batches,
            .handles = &handles_};
  }

  // Later calls use this round of the scenario.
  void turn_to(int round) { round_ = round; }

  Status run(const Experts& experts, bool two_batches = false) {
    std::fill(out_.begin(), out_.end(), std::byte{0xa5});
    return layer_.run(args(two_batches), experts);
  }

  Status dispatch(Received& received) {
    const LayerArgs given = args(false);
    return layer_.exchange().dispatch({.tokens = given.tokens, .topk_ids = given.topk_ids},
                                      received);
  }

  void check(const std::string& what) const {
    const ExchangeConfig& config = scenario_.config;
    const Round& round = scenario_.rounds[round_];
    if (!round.takes_part(rank_)) {
      require(std::ranges::all_of(out_, [](std::byte each) { return each == std::byte{0xa5}; }),
              what + ": a rank that is left out wrote results");
      return;
    }
    std::vector<internal::RankOutput> outputs(scenario_.num_ranks);
    for (int rank = 0; rank < scenario_.num_ranks; ++rank) {
      const internal::RankReceived& received = round.expected[rank];
      outputs[rank].expert_rows = received.rows;
      outputs[rank].weighted = true;
      outputs[rank].out_type = DataType::kFp32;
      if (!round.takes_part(rank)) continue;
      const std::int64_t row_bytes = config.hidden * 4;
      for (int expert = 0; expert < num_local_; ++expert) {
        const std::int64_t first = received.expert_offsets[expert];
        std::byte* const rows = outputs[rank].expert_rows.data() + first * row_bytes;
        multiply(rows, rank * num_local_ + expert,
                 (received.expert_offsets[expert + 1] - first) * config.hidden, rows);
      }
    }
    const auto expected =
        internal::reference_combine(config, round.inputs, outputs, config.hidden, DataType::kFp32);
    require(out_.size() == expected[rank_].out.size(), what + ": size");
    require_same_bytes(out_.data(), expected[rank_].out.data(), out_.size(), what);
    std::vector<std::int64_t> counts(num_local_);
    for (const Handle& handle : handles_)
      for (int expert = 0; expert < num_local_; ++expert)
        counts[expert] += handle.tokens_per_expert()[expert];
    require(counts == round.expected[rank_].tokens_per_expert, what + ": counts");
  }

  int rank() const { return rank_; }
  Layer& layer() { return layer_; }

 private:
  static std::size_t bytes_of(const internal::RankInput& input) { return input.tokens.size(); }

  const int rank_, num_local_;
  const Scenario& scenario_;
  Layer layer_;
  int round_ = 0;
  std::vector<std::byte> out_;
  std::vector<Handle> handles_;  // of the last call
};

class LayerCall : public testing::TestWithParam<Mode> {};

TEST_P(LayerCall, HasTheResultsOfTheThreeCalls) {
  for (const int alignment : {1, 8}) {
    ExchangeConfig config = layer_config();
    config.expert_alignment = alignment;
    const Scenario scenario = plain_scenario(3, config, 1, 71);
    run_ranks(GetParam(), 3, [&](Group group) {
      LayerSeat seat(group, scenario);
      for (const bool two_batches : {false, true, true, false}) {
        require_ok(seat.run(seat.multiplies(), two_batches), "layer");
        seat.check(two_batches ? "two batches" : "one batch");
      }
    });
  }
}

// While ranks are left out, replicas on the active ranks serve their experts.
TEST_P(LayerCall, IsMadeByTheActiveRanks) {
  ExchangeConfig config = layer_config();
  config.replicas = {{{0, 10}, {1, 11}, {2, 4}, {3, 5}, {6, 8}, {7, 9}}, ReplicaChoice::kByTable};
  Scenario scenario = plain_scenario(3, config, 3, 78);
  for (internal::RankInput& input : scenario.rounds[1].inputs) {
    input.active_ranks = {2, 0};
    input.replica_table = {0, 1, 0, 0, 1, 1};
  }
  expect_dispatch(config, scenario.rounds[1]);
  run_ranks(GetParam(), 3, [&](Group group) {
    LayerSeat seat(group, scenario);
    for (const bool two_batches : {false, true}) {
      for (int round = 0; round < 3; ++round) {
        seat.turn_to(round);
        require_ok(seat.run(seat.multiplies(), two_batches), "layer");
        seat.check(fmt::format("round {}, two batches: {}", round, two_batches));
      }
    }
  });
}

// In two batches the first has come before its experts are called.
TEST_P(LayerCall, HasAllExpertsWhoseRowsAreThere) {
  const Scenario scenario = plain_scenario(1, layer_config(), 1, 77);
  run_ranks(GetParam(), 1, [&](Group group) {
    LayerSeat seat(group, scenario);
    for (const bool two_batches : {false, true}) {
      std::vector<int> called;
      const auto notes = [&](std::span<const ExpertRows> ready) {
        for (const ExpertRows& each : ready) called.push_back(each.expert);
        called.push_back(-1);
        seat.multiplies()(ready);
      };
      require_ok(seat.run(notes, two_batches), "layer");
      std::vector<int> expected(13, -1);
      std::iota(expected.begin(), expected.end() - 1, 0);
      if (two_batches) expected.insert(expected.end(), expected.begin(), expected.end());
      require(called == expected, fmt::format("called {}", fmt::join(called, " ")));
    }
  });
}

TEST_P(LayerCall, EndsOnAllRanksWhereACallThrows) {
  const Scenario scenario = plain_scenario(3, layer_config(), 1, 72);
  run_ranks(GetParam(), 3, [&](Group group) {
    LayerSeat seat(group, scenario);
    // Each of 4 experts has rows in each batch.
    for (const auto& [two_batches, last] : {std::pair(false, 3), {true, 3}, {true, 4}}) {
      int before = 0;
      const Status status = seat.run(
          [&, last = last](std::span<const ExpertRows> ready) {
            before += static_cast<int>(ready.size());
            if (seat.rank() == 1 && before > last) throw std::runtime_error("no such kernel");
            seat.multiplies()(ready);
          },
          two_batches);
      require_status(status, seat.rank() == 1 ? Code::kInvalidArgument : Code::kPeerRejected,
                     {"threw: no such kernel"}, "the expert threw");
    }
    require_ok(seat.run(seat.multiplies()), "the layer goes on");
    seat.check("afterwards");
  });
}

// Rank 1 calls in two batches with ids of fewer tokens, without memory for results, and with an
// expert that throws an object that is no std::exception.
TEST_P(LayerCall, GoesOnAfterBadArguments) {
  const Scenario scenario = plain_scenario(2, layer_config(), 1, 74);
  run_ranks(GetParam(), 2, [&](Group group) {
    LayerSeat seat(group, scenario);
    const bool wrong = seat.rank() == 1;
    const Code told = wrong ? Code::kInvalidArgument : Code::kPeerRejected;
    LayerArgs few = seat.args(true), nowhere = seat.args(true);
    if (wrong) few.topk_ids.num_tokens = 1, nowhere.out = nullptr;
    require_status(seat.layer().run(few, seat.multiplies()), told, {"1"}, "few ids");
    for (int turn = 0; turn < 3; ++turn)
      require_status(seat.layer().run(nowhere, seat.multiplies()), told, {"out"}, "no results");
    const Experts throws = [&](std::span<const ExpertRows>) { throw 5; };
    require_status(seat.run(wrong ? throws : seat.multiplies(), true), told, {"threw"}, "an int");
    require_ok(seat.run(seat.multiplies(), true), "the layer goes on");
    seat.check("afterwards");
  });
}

TEST_P(LayerCall, RefusesWhatItCannotSchedule) {
  ExchangeConfig config = layer_config();
  config.depth = 1;
  const Scenario scenario = plain_scenario(2, config, 1, 76);
  const auto require_refused = [](const std::function<Layer()>& make) {
    try {
      make();
      throw Failure("a layer of rank_major rows");
    } catch (const Error& error) {
      require(contains(error.what(), "expert_major, not rank_major"), error.what());
    }
  };
  run_ranks(GetParam(), 2, [&](Group group) {
    const bool wrong = group.rank() == 1;
    ExchangeConfig by_rank = config;
    by_rank.layout = Layout::kRankMajor;
    require_refused([&] { return Layer(group, wrong ? by_rank : config); });
    require_refused([&] { return Layer(Exchange(group, by_rank)); });
    LayerSeat seat(group, scenario);
    require_status(seat.run(seat.multiplies(), wrong),
                   wrong ? Code::kInvalidArgument : Code::kPeerRejected, {"depth 2, not 1"},
                   "two batches");
    require_ok(seat.run(seat.multiplies()), "the layer goes on");
    seat.check("afterwards");
  });
}

TEST_P(LayerCall, GoesOnWhenTooManyViewsAreAlive) {
  const Scenario scenario = plain_scenario(2, layer_config(), 8, 73);
  run_ranks(GetParam(), 2, [&](Group group) {
    LayerSeat seat(group, scenario);
    // With the last one there is no room for rows either.
    std::vector<Received> held(6);
    for (Received& each : held) {
      require_ok(seat.dispatch(each), "dispatch");
      for (const bool two_batches : {false, true}) {
        require_ok(seat.run(seat.multiplies(), two_batches), "layer");
        seat.check("with views held");
      }
    }
    std::vector<bool> ready;
    require_status(seat.layer().exchange().ready_experts({.number = 99}, ready),
                   Code::kInvalidArgument, {"operation 99 is not a dispatch in flight"}, "none");
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, LayerCall, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, LayerCall, testing::Values(Mode::kProcesses));

// Rank 1 is refused one block of memory during a call: in the layer or in a wait, after which all
// go on, or in the exchange, which may break the group.
void refuse_memory(const Scenario& scenario, bool two_batches, int block,
                   std::atomic<int>& goes_on) {
  run_ranks(Mode::kThreads, 2, [&](Group group) {
    LayerSeat seat(group, scenario);
    require_ok(seat.run(seat.multiplies(), two_batches), "before");
    require_ok(group.barrier(), "barrier");
    Status status;
    {
      // Rank 0 comes late, so that rank 1 looks at the state of the others while it waits.
      if (seat.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const RefusedMemory one(seat.rank() == 1 ? block : -1, /*once=*/true);
      status = seat.run(seat.multiplies(), two_batches);
    }
    if (status.ok()) return;
    const std::string what = fmt::format("block {}, two batches: {}", block, two_batches);
    if (!status.group_usable()) {
      require_status(status, Code::kBroken, {seat.rank() == 1 ? "out of memory" : "rank 1"}, what);
      return;
    }
    require_status(status, seat.rank() == 1 ? Code::kCapacity : Code::kPeerRejected,
                   {"out of memory"}, what);
    ++goes_on;
    require_ok(seat.run(seat.multiplies(), two_batches), what);
    seat.check(what);
  });
}

TEST(LayerMemory, ThatIsRefusedIsAnErrorOnAllRanks) {
  const Scenario scenario = plain_scenario(2, layer_config(), 1, 79);
  constexpr int kBlocks = 24;  // a call requests up to 14
  for (const bool two_batches : {false, true}) {
    std::atomic<int> goes_on{0};
    for (int block = 0; block < kBlocks; ++block)
      refuse_memory(scenario, two_batches, block, goes_on);
    EXPECT_GE(goes_on, 2);  // one block, on two ranks
  }
}

// Rank 0's experts 0 and 1 get the tokens of one rank each, and rank 1 stops in the middle of its
// own.
TEST(LayerFaults, ExpertsRunWhileOtherRowsAreOnTheirWay) {
  ExchangeConfig config = layer_config();
  config.max_tokens = 64;
  config.hidden = 512;
  config.top_k = 1;
  Scenario scenario = plain_scenario(2, config, 1, 74);
  Round& round = scenario.rounds[0];
  for (int rank = 0; rank < 2; ++rank)
    std::fill(round.inputs[rank].topk_ids.begin(), round.inputs[rank].topk_ids.end(), rank);
  expect_dispatch(scenario.config, round);
  const SharedBoard board;
  ProcessRanks ranks(2, {}, [&](Group group) {
    LayerSeat seat(group, scenario);
    if (seat.rank() == 0) {
      require_ok(seat.run([&](std::span<const ExpertRows> ready) {
        if (ready[0].expert == 0) board->told.store(1, std::memory_order_release);
        seat.multiplies()(ready);
      }),
                 "rank 0");
    } else {
      const std::vector<std::byte>& tokens = round.inputs[1].tokens;
      Trap trap(tokens.size(), *board, SIGSTOP);
      std::memcpy(trap.data(), tokens.data(), tokens.size());
      LayerArgs args = seat.args(false);
      args.tokens.data = trap.data();
      trap.arm();
      require_ok(seat.layer().run(args, seat.multiplies()), "rank 1");
    }
    seat.check("in the end");
  });
  siginfo_t stopped = {};
  waitid(P_PID, static_cast<id_t>(ranks.pid(1)), &stopped, WSTOPPED | WEXITED | WNOWAIT);
  board.await_told(1);
  EXPECT_EQ(board->told.load(std::memory_order_acquire), 1) << "expert 0 waited for other rows";
  ranks.send_signal(1, SIGCONT);
  expect_all_well(ranks.wait(std::chrono::seconds(20)), "");
}

TEST(LayerFaults, ARankThatDiesInAnExpertIsNamed) {
  for (const bool two_batches : {false, true}) {
    const Scenario scenario = plain_scenario(3, layer_config(), 1, 75);
    const SharedBoard board;
    ProcessRanks ranks(3, {}, [&](Group group) {
      LayerSeat seat(group, scenario);
      require_ok(seat.run(seat.multiplies(), two_batches), "before");
      const Status status = seat.run(
          [&](std::span<const ExpertRows> ready) {
            if (seat.rank() == 1) strike_self(*board, SIGKILL);
            seat.multiplies()(ready);
          },
          two_batches);
      require_status(status, Code::kPeerLost, {"rank 1", "dead"}, "the layer");
      require(status.culprit() == 1, "culprit " + std::to_string(status.culprit()));
    });
    std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(20));
    EXPECT_EQ(ends[1].signal, SIGKILL);
    ends[1] = {};
    expect_all_well(ends, "");
  }
}

}  // namespace
}  // namespace ferry::test
