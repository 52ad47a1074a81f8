// The hazards of memory that others write, each by its name, with ranks as threads and as
// processes.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <optional>

#include "exchange/setup/setup.h"
#include "seat.h"

namespace ferry::test {
namespace {

class Hazards : public SeatTest {};

ExchangeConfig hazard_config() {
  return {.max_tokens = 24, .hidden = 96, .num_experts = 10, .top_k = 3};
}

// Other tokens in every round, the routing of round 0 in all of them.
Scenario cached_scenario(int num_ranks, const ExchangeConfig& config, int num_rounds,
                         std::uint64_t seed) {
  Scenario scenario = plain_scenario(num_ranks, config, num_rounds, seed);
  Random random(seed, 9);
  for (Round& round : scenario.rounds) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      round.inputs[rank].topk_ids = scenario.rounds[0].inputs[rank].topk_ids;
    }
    expect_dispatch(scenario.config, round);
    round.combines = {random_combine(scenario.config, round, config.hidden, config.dtype, random)};
  }
  return scenario;
}

TEST_P(Hazards, LateRank) {
  const Scenario scenario = plain_scenario(3, hazard_config(), 6, 11);
  run(scenario, [](Group, Seat& seat) {
    for (int round = 0; round < 6; ++round) {
      if (round % 3 == seat.rank()) nap(30);
      Received received = seat.dispatch(round);
      if (round % 3 == seat.rank()) nap(30);
      seat.combine(round, received.handle, &received);
    }
  });
}

// The others run ahead as far as the depth lets them, while rank 0 has sent its rows but has not
// looked at the rows that came.
TEST_P(Hazards, LappedRank) {
  const Scenario scenario = plain_scenario(3, hazard_config(), 12, 12);
  run(scenario, [](Group, Seat& seat) {
    for (int round = 0; round < 12; ++round) {
      const Operation operation = seat.dispatch_send(round);
      if (seat.rank() == 0) nap(10);
      const Received received = seat.dispatch_recv(round, operation);
      if (seat.rank() == 0) nap(10);
      seat.check(round, received, " after the others ran ahead");
    }
  });
}

// Peers release the rows that rank 0 still has to read for its combine, and send the next batch.
TEST_P(Hazards, ReusedBuffer) {
  const Scenario scenario = plain_scenario(3, hazard_config(), 12, 13);
  run(scenario, [](Group, Seat& seat) {
    std::optional<Seat::PendingCombine> last;
    for (int round = 0; round < 12; ++round) {
      const Operation operation = seat.dispatch_send(round);
      if (seat.rank() == 0 && last) nap(5);
      if (last) seat.combine_recv(*last);
      Received received = seat.dispatch_recv(round, operation);
      last = seat.combine_send(round, received.handle, &received);
    }
    seat.combine_recv(*last);
  });
}

// Balanced batches, then every token of every rank to the same experts: the buffer grows in the
// middle of a dispatch.
TEST_P(Hazards, OverflowFromBalancedToAllOnOneRank) {
  ExchangeConfig config = hazard_config();
  config.max_tokens = 200;
  config.hidden = 700;
  config.num_experts = 40;
  Scenario scenario = plain_scenario(4, config, 4, 14);
  route_all_to_first_experts(scenario, 2);
  run(scenario, [](Group, Seat& seat) {
    for (int round = 0; round < 4; ++round) {
      seat.play(round);
    }
    require((seat.exchange().stats().window_growths > 0) == (seat.rank() == 0),
            "only rank 0 has to grow its window");
  });
}

// The same, but rank 3 reads its rows late, when rows of the next batch and its growth are already
// on the way.
TEST_P(Hazards, SlowReaderAfterAnOverflow) {
  ExchangeConfig config = hazard_config();
  config.max_tokens = 100;
  config.hidden = 700;
  config.num_experts = 40;
  Scenario scenario = plain_scenario(4, config, 8, 15);
  for (const int round : {1, 2, 5}) route_all_to_first_experts(scenario, round);
  run(scenario, [](Group, Seat& seat) {
    std::optional<Seat::PendingCombine> last;
    for (int round = 0; round < 8; ++round) {
      const Operation operation = seat.dispatch_send(round);
      if (seat.rank() == 3) nap(20);
      if (last) seat.combine_recv(*last);
      Received received = seat.dispatch_recv(round, operation);
      if (seat.rank() == 3) nap(20);
      seat.check(round, received, " after a nap");
      last = seat.combine_send(round, received.handle, &received);
    }
    seat.combine_recv(*last);
  });
}

// Two sets of ranks with none in common, each with operations of the same numbers. Their matrix is
// so large that the ranks of a set sum it together.
TEST_P(Hazards, SetsOfRanksAtTheSameTime) {
  ExchangeConfig config = hazard_config();
  config.num_experts = static_cast<int>(internal::kSharedSumsFrom / 2);
  const std::vector<std::vector<int>> sets{{1, 0}, {2, 3}};
  std::vector<Scenario> of_set;
  for (const std::vector<int>& set : sets) {
    Scenario& scenario = of_set.emplace_back(plain_scenario(4, config, 4, 19 + set[0]));
    for (Round& round : scenario.rounds) {
      for (internal::RankInput& input : round.inputs) input.active_ranks = set;
      expect_dispatch(config, round);
    }
  }
  run_ranks(
      GetParam(), 4,
      [&](Group group) {
        Seat seat(group, of_set[group.rank() / 2]);
        for (int i = 0; i < 40; ++i) seat.dispatch(i % 4);
        require_ok(group.barrier(), "barrier");
      },
      "sets at the same time");
}

TEST_P(Hazards, DispatchOfTheNextBatchBeforeCombineOfThis) {
  const Scenario scenario = plain_scenario(4, hazard_config(), 20, 16);
  run(scenario, [](Group, Seat& seat) {
    Received received = seat.dispatch(0);
    for (int round = 0; round < 20; ++round) {
      Received next = round < 19 ? seat.dispatch(round + 1) : Received{};
      seat.check(round, received, " after the next dispatch");
      seat.combine(round, received.handle, &received);
      received = std::move(next);
    }
  });
}

// The overlap of decoding: while one micro-batch is with the experts, the other is on its way.
TEST_P(Hazards, TwoMicroBatchesWithHalves) {
  const Scenario scenario = plain_scenario(4, hazard_config(), 30, 17);
  run(scenario, [](Group, Seat& seat) {
    std::optional<Seat::PendingCombine> coming_home;
    Operation sent = seat.dispatch_send(0);
    for (int round = 0; round < 30; ++round) {
      Received received = seat.dispatch_recv(round, sent);
      if (coming_home) seat.combine_recv(*coming_home);
      if (round < 29) sent = seat.dispatch_send(round + 1);
      seat.check(round, received, " with the next batch on its way");
      coming_home = seat.combine_send(round, received.handle, &received);
    }
    seat.combine_recv(*coming_home);
  });
}

TEST_P(Hazards, CachedDispatchByAFastRankAgainstASlowOne) {
  const Scenario scenario = cached_scenario(3, hazard_config(), 15, 18);
  run(scenario, [](Group, Seat& seat) {
    const Handle handle = seat.dispatch(0).handle;
    for (int round = 1; round < 15; ++round) {
      const Received received = seat.dispatch(round, handle);
      if (seat.rank() == 1) nap(5);
      seat.check(round, received, " after a nap");
    }
    for (int round = 14; round > 0; --round) {
      if (seat.rank() == 2) nap(2);
      seat.combine(round, handle);
    }
  });
}

// Rows of 7 bytes from all ranks lie next to each other in one expert's block; a store past a row's
// end would hit a neighbour's row, or the zeroed gap.
TEST_P(Hazards, RowsOfOddBytesBesideConcurrentlyWrittenNeighbours) {
  for (const std::int64_t hidden : {1, 7, 13, 65, 129}) {
    ExchangeConfig config = hazard_config();
    config.max_tokens = 64;
    config.hidden = hidden;
    config.dtype = DataType::kBytes;
    config.num_experts = 2;
    config.top_k = 1;
    config.expert_alignment = 7;
    config.zero_gaps = true;
    config.workers = 3;
    Scenario scenario = plain_scenario(4, config, 20, 19);
    for (int round = 0; round < 20; ++round) {
      // Each rank keeps one token in 16, so that rows of different ranks are close.
      for (internal::RankInput& input : scenario.rounds[round].inputs) {
        for (std::size_t i = 0; i < input.topk_ids.size(); ++i) {
          if ((i + round) % 16 != 0) input.topk_ids[i] = -1;
        }
      }
      expect_dispatch(config, scenario.rounds[round]);
    }
    run(scenario, [](Group, Seat& seat) {
      for (int round = 0; round < 20; ++round) seat.dispatch(round);
    });
  }
}

// A buffer for a cached dispatch is backed for the rows of its handle, which no counts announce.
TEST_P(Hazards, CachedDispatchOfMoreRowsThanABufferHas) {
  Scenario scenario = plain_scenario(3, hazard_config(), 1, 28);
  for (internal::RankInput& input : scenario.rounds[0].inputs)
    for (std::int64_t& id : input.topk_ids) id = id < 0 ? id : 0;
  expect_dispatch(scenario.config, scenario.rounds[0]);
  run(scenario, [](Group group, Seat& seat) {
    const Received held = seat.dispatch(0);
    const std::size_t backed = seat.exchange().window_bytes().expected;
    const Received again = seat.dispatch(0, held.handle);
    const std::size_t grown = seat.exchange().window_bytes().expected - backed;
    const std::size_t rows = held.num_rows * held.hidden * element_bytes(held.dtype);
    require(grown >= rows,
            std::to_string(grown) + " bytes more for rows of " + std::to_string(rows) + " bytes");
    require_ok(group.barrier(), "barrier");
  });
}

// More views than the pool has buffers: the later ones are copies. All views keep their rows, even
// past the end of the group.
TEST_P(Hazards, ViewsHeldPastThePool) {
  const Scenario scenario = plain_scenario(2, hazard_config(), 40, 20);
  run(scenario, [](Group group, Seat& seat) {
    std::deque<Received> held;
    for (int round = 0; round < 40; ++round) {
      held.push_back(seat.dispatch(round));
      if (round % 4 == 0) seat.combine(round, held.back().handle);
    }
    require(seat.exchange().stats().bytes_copied > 0, "views past the pool are copies");
    OutputRows refused;
    require_status(seat.exchange().allocate_outputs(1, 96, DataType::kBf16, refused),
                   Code::kCapacity, {"views"}, "output rows while all buffers are held");
    seat.exchange() = Exchange{};
    group.destroy();
    for (int round = 0; round < 40; ++round) seat.check(round, held[round], " at the end");
  });
}

// The rows of every round are released at once; its handle serves two combines afterwards.
TEST_P(Hazards, HandleOutlivesItsRows) {
  const Scenario scenario = plain_scenario(3, hazard_config(), 10, 21);
  run(scenario, [](Group, Seat& seat) {
    std::vector<Handle> handles;
    for (int round = 0; round < 10; ++round) handles.push_back(seat.dispatch(round).handle);
    for (int round = 9; round >= 0; --round) seat.combine(round, handles[round]);
    for (int round = 0; round < 10; ++round) seat.combine(round, handles[round]);
  });
}

// Rank 1 leaves while the others wait for it: they are told at once, and what they hold stays
// readable.
TEST_P(Hazards, TornDownGroup) {
  const Scenario scenario = plain_scenario(3, hazard_config(), 2, 22);
  run(scenario, [&scenario](Group group, Seat& seat) {
    const Received received = seat.dispatch(0);
    if (seat.rank() == 1) {
      nap(50);
      group.destroy();
      return;  // and the exchange goes, maybe before the others have noticed
    }
    const auto began = std::chrono::steady_clock::now();
    DispatchCall call = seat.dispatch_call(1);
    Received none;
    const Status status = seat.exchange().dispatch(call.args(), none);
    require_status(status, Code::kPeerLost, {"dispatch", "counts", "rank 1"},
                   "dispatch after rank 1 left");
    require(status.culprit() == 1,
            "the culprit is rank 1, not " + std::to_string(status.culprit()));
    require(std::chrono::steady_clock::now() - began < std::chrono::seconds(1),
            "it takes less than a second");
    require(!group.usable(), "the group is broken");
    const Status next = seat.exchange().dispatch(call.args(), none);
    require(!next.ok() && !next.group_usable(), "the next call fails as well");
    seat.check(0, received, " after the group broke");
  });
}

// Rank 1 destroys its exchange only: the others are told so, and the group goes on with a new
// exchange.
TEST_P(Hazards, DestroyedExchange) {
  const Scenario scenario = plain_scenario(3, hazard_config(), 2, 23);
  run(scenario, [&scenario](Group group, Seat& seat) {
    const Received received = seat.dispatch(0);
    if (seat.rank() == 1) {
      seat.exchange() = Exchange{};
    } else {
      DispatchCall call = seat.dispatch_call(1);
      Received none;
      const Status status = seat.exchange().dispatch(call.args(), none);
      require(!status.ok() && status.culprit() == 1,
              "dispatch without rank 1's exchange: " + status.message());
      require(contains(status.message(), "rank 1"), status.message());
    }
    seat.check(0, received, " after the exchange went");
    require_ok(group.barrier(), "barrier");
    Seat(group, scenario).dispatch(1);
  });
}

// An exception that ends a rank destroys its exchange, and soon after that its group. The others
// get one error, that the rank has left, and not first one about its exchange.
TEST_P(Hazards, RankThatEndsByAnException) {
  const Scenario scenario = plain_scenario(3, hazard_config(), 2, 24);
  run(scenario, [&scenario](Group group, Seat& seat) {
    seat.dispatch(0);
    if (seat.rank() == 1) {
      seat.exchange() = Exchange{};
      nap(100);
      return;
    }
    DispatchCall call = seat.dispatch_call(1);
    Received none;
    const Status status = seat.exchange().dispatch(call.args(), none);
    require_status(status, Code::kPeerLost, {"dispatch", "counts", "rank 1", "left"}, "dispatch");
    require(status.culprit() == 1 && !status.group_usable() && !group.usable(), status.message());
  });
}

// Rank 2 has its rows and does not look at them; the others leave it out and go on, so the rows
// that it reads may be of a later operation.
TEST_P(Hazards, RankThatIsLeftOutAndLapped) {
  ExchangeConfig config = hazard_config();
  config.depth = 1;
  const Scenario scenario = plain_scenario(3, config, 2, 25);
  if (scenario.nodes.of_rank[1] != scenario.nodes.of_rank[2])
    GTEST_SKIP() << "nobody else writes what rank 2 reads, nor tells it how far the others are";
  run(scenario, [&scenario](Group group, Seat& seat) {
    const Operation sent = seat.dispatch_send(0);
    Received received;
    if (seat.rank() != 2) {
      received = seat.dispatch_recv(0, sent);
      received.release();
      const std::vector<int> others = {0, 1};
      DispatchCall call = seat.dispatch_call(1);
      call.args().active_ranks = others;
      require_ok(seat.exchange().dispatch(call.args(), received), "dispatch without rank 2");
    }
    require_ok(group.barrier(), "the others went on");
    if (seat.rank() == 2) {
      const Status status = seat.exchange().dispatch_recv(sent, received);
      require_status(status, Code::kMismatch, {"others went on without rank 2"}, "receive half");
      require(status.culprit() == 2 && received.data == nullptr, status.message());
    }
    require_ok(group.barrier(), "rank 2 was told");
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, Hazards, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, Hazards, testing::Values(Mode::kProcesses));

}  // namespace
}  // namespace ferry::test
