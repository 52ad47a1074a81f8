// The steps of a Seat.
#include "seat.h"

#include <thread>
#include <utility>

namespace ferry::test {

Seat::Seat(const Group& group, const Scenario& scenario)
    : Seat(group, scenario, Exchange(group, scenario.config)) {}

Seat::Seat(const Group& group, const Scenario& scenario, Exchange exchange)
    : scenario_(scenario),
      rank_(group.rank()),
      random_(scenario.seed, 2000 + static_cast<std::uint64_t>(group.rank())),
      exchange_(std::move(exchange)) {}

DispatchCall Seat::dispatch_call(int round) {
  return {scenario_, scenario_.rounds[round], rank_, random_};
}

DispatchCall Seat::dispatch_call(int round, const Handle& cached) {
  DispatchCall call = dispatch_call(round);
  if (cached) call.args().cached = cached;
  if (cached) call.args().topk_ids = {};
  return call;
}

CombineCall Seat::combine_call(int round, const Handle& handle, Received* in_place) {
  const Round& played = scenario_.rounds[round];
  return {exchange_, scenario_, played, played.combines[0], rank_, handle, in_place, random_};
}

void Seat::play(int round) {
  Received received = dispatch(round);
  combine(round, received.handle, &received);
}

Received Seat::dispatch(int round, const Handle& cached) {
  const DispatchCall call = dispatch_call(round, cached);
  Received received;
  require_ok(exchange_.dispatch(call.args(), received),
             "dispatch of round " + std::to_string(round));
  check(round, received);
  return received;
}

Operation Seat::dispatch_send(int round, const Handle& cached) {
  const DispatchCall call = dispatch_call(round, cached);
  Operation operation;
  require_ok(exchange_.dispatch_send(call.args(), operation),
             "dispatch_send of round " + std::to_string(round));
  return operation;
}

Received Seat::dispatch_recv(int round, Operation operation) {
  Received received;
  require_ok(exchange_.dispatch_recv(operation, received),
             "dispatch_recv of round " + std::to_string(round));
  check(round, received);
  return received;
}

void Seat::check(int round, const Received& received, const std::string& when) const {
  check_received(scenario_, scenario_.rounds[round], rank_, received,
                 "round " + std::to_string(round) + when);
}

void Seat::combine(int round, const Handle& handle, Received* in_place) {
  const CombineCall call = combine_call(round, handle, in_place);
  require_ok(exchange_.combine(call.args()), "combine of round " + std::to_string(round));
  call.check("combine of round " + std::to_string(round));
}

Seat::PendingCombine Seat::combine_send(int round, const Handle& handle, Received* in_place) {
  PendingCombine pending{
      round,
      {},
      std::unique_ptr<CombineCall>(new CombineCall(combine_call(round, handle, in_place)))};
  require_ok(exchange_.combine_send(pending.call->args(), pending.operation),
             "combine_send of round " + std::to_string(round));
  return pending;
}

void Seat::combine_recv(const PendingCombine& pending) {
  require_ok(exchange_.combine_recv(pending.operation),
             "combine_recv of round " + std::to_string(pending.round));
  pending.call->check("combine of round " + std::to_string(pending.round));
}

void SeatTest::run(const Scenario& scenario, const std::function<void(Group, Seat&)>& body,
                   const GroupOptions& options) {
  const auto with_seat = [&](Group group) {
    Seat seat(group, scenario);
    body(std::move(group), seat);
  };
  run_ranks(GetParam(), scenario.num_ranks, with_seat, scenario.describe(), options);
}

void nap(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

}  // namespace ferry::test
