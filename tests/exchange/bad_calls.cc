// Makes the bad call and the calls after it, on every rank.
#include "bad_calls.h"

namespace ferry::test {
namespace {

// What the offender and the others must be told.
void require_refused(const Status& status, int rank, const std::vector<std::string>& parts) {
  require(status.group_usable(), "the group is usable: " + status.message());
  require(status.culprit() == kOffender,
          "culprit " + std::to_string(status.culprit()) + ": " + status.message());
  if (rank == kOffender) {
    require_status(status, Code::kInvalidArgument, parts, "the offender");
  } else {
    require_status(status, Code::kPeerRejected, parts, "the others");
    require_status(status, Code::kPeerRejected, {"rank 1"}, "the others");
  }
}

}  // namespace

ExchangeConfig small_config() {
  return {.max_tokens = kTokens, .hidden = 32, .num_experts = 6, .top_k = kTopK};
}

Scenario two_rounds(const ExchangeConfig& config) { return plain_scenario(kRanks, config, 2, 71); }

void try_bad_dispatch(Mode mode, const Scenario& scenario, const BadDispatch& bad) {
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    Scratch scratch;
    scratch.ids = scenario.rounds[0].inputs[seat.rank()].topk_ids;
    scratch.narrow_ids.assign(scratch.ids.begin(), scratch.ids.end());
    scratch.weights = scenario.rounds[0].inputs[seat.rank()].topk_weights;
    DispatchCall call = seat.dispatch_call(0);
    call.args().topk_ids.data = scratch.ids.data();
    call.args().topk_ids.type = IndexType::kInt64;
    if (seat.rank() == kOffender) bad.spoil(call.args(), scratch);
    Received received;
    const Status status = seat.exchange().dispatch(call.args(), received);
    require(received.data == nullptr && !received.handle, "nothing is received");
    require_refused(status, seat.rank(), bad.parts);
    seat.play(1);
  };
  run_ranks(mode, kRanks, body, bad.name);
}

void try_bad_combine(Mode mode, const Scenario& scenario, const BadCombine& bad) {
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    Scratch scratch;
    scratch.weights = scenario.rounds[0].inputs[seat.rank()].topk_weights;
    const Handle handle = seat.dispatch(0).handle;
    CombineCall call = seat.combine_call(0, handle);
    if (seat.rank() == kOffender) bad.spoil(call.args(), scratch);
    require_refused(seat.exchange().combine(call.args()), seat.rank(), bad.parts);
    seat.combine(0, handle);
    seat.play(1);
  };
  run_ranks(mode, kRanks, body, bad.name);
}

}  // namespace ferry::test
