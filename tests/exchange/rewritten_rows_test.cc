// When rows of the window that combine reads in place may be written again: Exchange::may_write,
// and the rule of docs/gotchas.md that needs no call. The tests overwrite rows that may be written,
// with bytes that no result has.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>

#include "seat.h"

namespace ferry::test {
namespace {

class RewrittenRows : public SeatTest {};

ExchangeConfig small_config(int depth) {
  return {.max_tokens = 24,
          .hidden = 96,
          .num_experts = 9,
          .top_k = 3,
          .dtype = DataType::kFp32,
          .depth = depth};
}

// The routing of round 0 in every round, and rows of the type and width of the tokens. No weights
// return: they are copied into a buffer that the next dispatch would post, and wait for.
Scenario same_routing(const ExchangeConfig& config, int num_rounds, std::uint64_t seed) {
  Scenario scenario = plain_scenario(3, config, num_rounds, seed);
  Random random(seed, 9);
  for (Round& round : scenario.rounds) {
    for (int rank = 0; rank < 3; ++rank)
      round.inputs[rank].topk_ids = scenario.rounds[0].inputs[rank].topk_ids;
    expect_dispatch(config, round);
    do {
      round.combines = {random_combine(config, round, config.hidden, config.dtype, random)};
    } while (round.combines[0].weights_home);
  }
  return scenario;
}

bool may_write(Seat& seat, const void* rows) {
  bool may = false;
  require_ok(seat.exchange().may_write(rows, may), "may_write");
  return may;
}

// Between nodes the other ranks' flags are on their way.
void await_may_write(Seat& seat, const void* rows) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!may_write(seat, rows)) {
    require(std::chrono::steady_clock::now() < end, "rows that all ranks have read may be written");
    std::this_thread::yield();
  }
}

void overwrite(const Received& rows) {
  std::memset(rows.data, 0x5c, rows.num_rows * rows.hidden * element_bytes(rows.dtype));
}

// Output rows for a round, as a Seat takes memory for expert rows.
Received outputs_for(Seat& seat, const Handle& handle) {
  const ExchangeConfig& config = seat.exchange().config();
  OutputRows rows;
  require_ok(seat.exchange().allocate_outputs(handle.num_rows(), config.hidden, config.dtype, rows),
             "allocate_outputs");
  Received memory;
  memory.data = rows.data;
  memory.num_rows = rows.num_rows;
  memory.hidden = rows.hidden;
  memory.dtype = rows.dtype;
  memory.pin = rows.pin;
  return memory;
}

// The send half of a combine whose rows are written to `memory`, and read there.
Seat::PendingCombine send_in_place(Seat& seat, int round, const Handle& handle, Received& memory) {
  auto call = std::make_unique<CombineCall>(seat.combine_call(round, handle, &memory));
  call->args().in_place = true;
  Operation sent;
  require_ok(seat.exchange().combine_send(call->args(), sent), "combine_send");
  return {round, sent, std::move(call)};
}

void combine_in_place(Seat& seat, int round, const Handle& handle, Received& memory) {
  seat.combine_recv(send_in_place(seat, round, handle, memory));
}

// Combines of all rounds, each received when there is no room for one more.
void combine_late(Seat& seat, const Handle& handle, int depth) {
  std::deque<Seat::PendingCombine> sent;
  for (int round = 0; round < 20; ++round) {
    if (static_cast<int>(sent.size()) == depth) {
      nap(1);
      seat.combine_recv(sent.front());
      sent.pop_front();
    }
    sent.push_back(seat.combine_send(round, handle));
  }
  for (const Seat::PendingCombine& pending : sent) seat.combine_recv(pending);
}

// Rank 0 has finished the combine of round 0 and the dispatch of round 1 while rank 1, which made
// the same calls, has not looked at the rows of that combine.
TEST_P(RewrittenRows, ByAFastRankWhenASlowOneHasReadThem) {
  const Scenario scenario = same_routing(small_config(2), 2, 31);
  run(scenario, [](Group group, Seat& seat) {
    Received received = seat.dispatch(0);
    Received outputs = outputs_for(seat, received.handle);
    if (seat.rank() == 1) {
      const Seat::PendingCombine pending = send_in_place(seat, 0, received.handle, outputs);
      const Operation sent = seat.dispatch_send(1);
      seat.dispatch_recv(1, sent);
      require_ok(group.barrier(), "all have the rows of round 1");
      require_ok(group.barrier(), "rank 0 has written where it may");
      seat.combine_recv(pending);
    } else {
      combine_in_place(seat, 0, received.handle, outputs);
      seat.dispatch(1);
      require_ok(group.barrier(), "all have the rows of round 1");
      require(!may_write(seat, outputs.data), "rank 1 has not read the rows");
      require(may_write(seat, received.data), "no combine has read the received rows");
      overwrite(received);
      require_ok(group.barrier(), "rank 0 has written where it may");
    }
    await_may_write(seat, outputs.data);
    overwrite(outputs);
    require_ok(group.barrier(), "everybody knows");
  });
}

// The rule that needs no call: an operation that was sent `depth` or more after the combine is
// finished. Rank 1 receives as late as it can; the others use depth + 1 buffers in turn.
TEST_P(RewrittenRows, AfterAnOperationSentDepthLaterIsFinished) {
  for (const int depth : {1, 2, 4}) {
    const Scenario scenario = same_routing(small_config(depth), 20, 32 + depth);
    run(scenario, [depth](Group, Seat& seat) {
      const Handle handle = seat.dispatch(0).handle;
      if (seat.rank() == 1) return combine_late(seat, handle, depth);
      std::vector<Received> outputs(depth + 1);
      for (int round = 0; round < 20; ++round) {
        Received& memory = outputs[round % (depth + 1)];
        if (!memory.data) memory = outputs_for(seat, handle);
        require(may_write(seat, memory.data), "round " + std::to_string(round));
        overwrite(memory);
        combine_in_place(seat, round, handle, memory);
      }
    });
  }
}

// Weights that return are read in place too, here in another buffer than the rows.
TEST_P(RewrittenRows, OfWeightsThatReturn) {
  const Scenario scenario = same_routing(small_config(2), 1, 36);
  run(scenario, [](Group group, Seat& seat) {
    Received received = seat.dispatch(0);
    Received outputs = outputs_for(seat, received.handle);
    const Received weights = outputs_for(seat, received.handle);
    std::memset(weights.data, 0, weights.num_rows * sizeof(float));
    CombineCall call = seat.combine_call(0, received.handle, &outputs);
    call.args().in_place = true;
    call.args().row_weights = static_cast<const float*>(weights.data);
    Operation sent;
    require_ok(seat.exchange().combine_send(call.args(), sent), "combine_send");
    require_ok(group.barrier(), "nobody has read");
    require(!may_write(seat, weights.data), "weights that nobody has read");
    require_ok(group.barrier(), "all have asked");
    require_ok(seat.exchange().combine_recv(sent), "combine_recv");
    await_may_write(seat, weights.data);
    require_ok(group.barrier(), "everybody knows");
  });
}

// Everybody has read the rows for the first combine, and rank 1 not for the second.
TEST_P(RewrittenRows, OfTwoCombines) {
  const Scenario scenario = same_routing(small_config(2), 1, 37);
  run(scenario, [](Group group, Seat& seat) {
    Received received = seat.dispatch(0);
    const Handle handle = received.handle;
    combine_in_place(seat, 0, handle, received);
    await_may_write(seat, received.data);
    CombineCall again = seat.combine_call(0, handle);
    again.args().expert_rows = received.rows();
    again.args().in_place = true;
    Operation sent;
    require_ok(seat.exchange().combine_send(again.args(), sent), "combine_send");
    if (seat.rank() != 1) require_ok(seat.exchange().combine_recv(sent), "combine_recv");
    require_ok(group.barrier(), "rank 1 has not read the rows again");
    require(!may_write(seat, received.data), "rows of which the second combine is not read");
    require_ok(group.barrier(), "all have asked");
    if (seat.rank() == 1) require_ok(seat.exchange().combine_recv(sent), "combine_recv");
    again.check("the second combine");
    await_may_write(seat, received.data);
    overwrite(received);
    require_ok(group.barrier(), "everybody knows");
  });
}

// Rank 2 reads the rows late, and is left out of the dispatch after which the others write to them.
TEST_P(RewrittenRows, AfterAnOperationWithoutARankThatReadsThem) {
  const Scenario scenario = same_routing(small_config(2), 2, 38);
  run(scenario, [](Group group, Seat& seat) {
    Received received = seat.dispatch(0);
    const Seat::PendingCombine pending = send_in_place(seat, 0, received.handle, received);
    if (seat.rank() != 2) seat.combine_recv(pending);
    if (seat.rank() == 2) nap(100);
    const std::vector<int> others = {0, 1};
    DispatchCall call = seat.dispatch_call(1);
    call.args().active_ranks = others;
    Received next;
    require_ok(seat.exchange().dispatch(call.args(), next), "dispatch without rank 2");
    if (seat.rank() == 2) seat.combine_recv(pending);
    if (seat.rank() == 2) await_may_write(seat, received.data);
    require(may_write(seat, received.data), "rank 2 has read the rows");
    overwrite(received);
    require_ok(group.barrier(), "the end");
  });
}

// A rank that refuses its combine reads nothing; the others may have begun to.
TEST_P(RewrittenRows, AfterACombineThatWasRefused) {
  const Scenario scenario = same_routing(small_config(2), 2, 39);
  run(scenario, [](Group group, Seat& seat) {
    Received received = seat.dispatch(0);
    CombineCall call = seat.combine_call(0, received.handle, &received);
    call.args().in_place = true;
    if (seat.rank() == 1) call.args().out = nullptr;
    require(!seat.exchange().combine(call.args()).ok(), "rank 1 gave no out");
    await_may_write(seat, received.data);
    combine_in_place(seat, 0, received.handle, received);
    require_ok(group.barrier(), "the end");
  });
}

TEST_P(RewrittenRows, OfOtherMemory) {
  const Scenario scenario = same_routing(small_config(2), 2, 40);
  run(scenario, [](Group group, Seat& seat) {
    Exchange& exchange = seat.exchange();
    Received received = seat.dispatch(0);
    const void* const rows = received.data;
    const std::array<float, 8> foreign{};
    require(may_write(seat, nullptr) && may_write(seat, foreign.data()), "memory of the caller");
    require(may_write(seat, received.data), "rows that just came");
    bool may = true;
    require_status(exchange.may_write(received.sources.data(), may), Code::kInvalidArgument,
                   {"may_write", "rows"}, "sources are no rows");
    require(!may, "an error does not allow it");
    received.release();
    require_status(exchange.may_write(rows, may), Code::kInvalidArgument, {"view", "alive"},
                   "released rows");
    require_ok(group.barrier(), "all have asked");
    group.destroy();
    require_status(exchange.may_write(foreign.data(), may), Code::kClosed, {}, "a closed group");
    exchange = Exchange{};
    require_status(exchange.may_write(foreign.data(), may), Code::kClosed, {}, "no exchange");
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, RewrittenRows, testing::Values(Mode::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, RewrittenRows, testing::Values(Mode::kProcesses));

}  // namespace
}  // namespace ferry::test
