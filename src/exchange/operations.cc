// Part of ExchangeState: the send and receive halves of operations. A send half takes a number.
// Then it is refused, or it is carried out and the operation is kept until its receive half.
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "exchange/combine/combine.h"
#include "exchange/dispatch/dispatch.h"
#include "exchange/public_calls.h"
#include "exchange/state.h"

namespace ferry::internal {

namespace {

// Runs the part of a send half that ends with the announcement. If there is no memory before the
// announcement, the call is refused; after it, the exception is passed on, and the group breaks.
template <typename Announce>
Status announced(const Protocol& protocol, std::uint64_t number, int rank,
                 const Announce& announce) {
  try {
    return announce();
  } catch (const std::bad_alloc&) {
    if (protocol.is_announced(number)) throw;
    return {Code::kCapacity, kOutOfMemory, rank};
  }
}

}  // namespace

Status ExchangeState::dispatch_send(const DispatchArgs& args, Operation& operation) {
  operation = {};
  const std::int64_t began = now_ns();
  Protocol& protocol = parts_.protocol;
  if (Status status = protocol.begin(args.deadline); !status.ok()) return status;
  Status refusal = protocol.choose_active(args.chosen_ranks());
  const Issued issued = protocol.issue(OperationKind::kDispatch);
  auto dispatch = std::make_unique<Dispatch>(parts_, issued);
  if (refusal.ok() && !issued.active->contains_me()) {
    dispatch->leave_empty();
    protocol.keep_out(std::move(dispatch));
    operation.number = issued.number;
    return {};
  }
  if (refusal.ok()) {
    refusal = announced(protocol, issued.number, parts_.setup->rank,
                        [&] { return dispatch->announce(args); });
  }
  if (!refusal.ok()) return protocol.refuse(issued, refusal, args.digests.all);
  dispatch->times.spans.push_back({"count", began, now_ns()});
  if (Status status = dispatch->send(args); !status.ok()) return status;
  if (parts_.trace) parts_.trace->dispatch_sent(issued.number, dispatch->route(), args);
  operation.number = issued.number;
  protocol.keep(std::move(dispatch));
  return {};
}

Status ExchangeState::dispatch_recv(Operation operation, Received& received) {
  received.release();
  std::unique_ptr<InFlight> sent;
  Status status = parts_.protocol.collect(operation, OperationKind::kDispatch, sent);
  if (!status.ok()) return status;
  auto& dispatch = static_cast<Dispatch&>(*sent);
  dispatch.hand_over(received);
  if (dispatch.active().contains_me()) {
    dispatch_times_ = std::move(dispatch.times);
    if (parts_.trace) parts_.trace->dispatch_received(dispatch.number(), received);
  }
  count();
  return {};
}

Status ExchangeState::dispatch_memory(Operation operation, Received& received) {
  received.release();
  InFlight* sent = parts_.protocol.find(operation, OperationKind::kDispatch);
  if (!sent) return parts_.protocol.not_in_flight(operation, OperationKind::kDispatch);
  return static_cast<Dispatch*>(sent)->show(received);
}

Status ExchangeState::ready_experts(Operation operation, std::vector<bool>& ready) {
  InFlight* sent = parts_.protocol.find(operation, OperationKind::kDispatch);
  if (!sent) return parts_.protocol.not_in_flight(operation, OperationKind::kDispatch);
  parts_.group->progress();
  ready = static_cast<Dispatch*>(sent)->ready_experts();
  return parts_.group->verdict();
}

Status ExchangeState::combine_send(const CombineArgs& args, Operation& operation) {
  operation = {};
  const std::int64_t began = now_ns();
  Protocol& protocol = parts_.protocol;
  if (Status status = protocol.begin(args.deadline); !status.ok()) return status;
  Status refusal = protocol.choose_active(args.chosen_ranks());
  const Issued issued = protocol.issue(OperationKind::kCombine);
  auto combine = std::make_unique<Combine>(parts_, issued, args);
  if (refusal.ok() && !issued.active->contains_me()) {
    protocol.keep_out(std::move(combine));
    operation.number = issued.number;
    return {};
  }
  if (refusal.ok()) {
    refusal =
        announced(protocol, issued.number, parts_.setup->rank, [&] { return combine->announce(); });
  }
  if (!refusal.ok()) return protocol.refuse(issued, refusal, args.digests.all);
  if (Status status = combine->request_sums(); !status.ok()) return status;
  if (parts_.trace) parts_.trace->combine_sent(issued.number, combine->route(), args);
  combine->times.spans.push_back({"publish", began, now_ns()});
  operation.number = issued.number;
  protocol.keep(std::move(combine));
  return {};
}

Status ExchangeState::combine_recv(Operation operation) {
  std::unique_ptr<InFlight> sent;
  Status status = parts_.protocol.collect(operation, OperationKind::kCombine, sent);
  if (status.ok()) {
    auto& combine = static_cast<Combine&>(*sent);
    combine_times_ = std::move(combine.times);
    if (parts_.trace && combine.active().contains_me())
      parts_.trace->combine_received(combine.number(), combine.route(), combine.args());
  }
  count();
  return status;
}

Status ExchangeState::refuse(OperationKind kind, const Status& why,
                             std::span<const int> active_ranks,
                             std::vector<std::uint64_t>* digests) {
  Protocol& protocol = parts_.protocol;
  if (Status status = protocol.begin({}); !status.ok()) return status;
  const bool usual = !why.ok() && why.group_usable();
  const Status said = usual ? why
                            : Status(Code::kInvalidArgument,
                                     fmt::format("{}: {}", code_name(why.code()), why.message()),
                                     parts_.setup->rank);
  const Status refusal = protocol.choose_active(active_ranks);
  const Issued issued = protocol.issue(kind);
  const bool unknown = !refusal.ok() && !issued.set_known;
  return protocol.refuse(issued, refusal.ok() || unknown ? said : refusal, digests);
}

Status ExchangeState::skip(std::string_view why, const Digests& digests,
                           std::span<const int> active_ranks) {
  Protocol& protocol = parts_.protocol;
  if (Status status = protocol.begin({}); !status.ok()) return status;
  const Status refusal = protocol.choose_active(active_ranks);
  const Issued issued = protocol.issue(OperationKind::kDispatch);
  return refusal.ok() ? protocol.skip(issued, why, digests)
                      : protocol.refuse(issued, refusal, digests.all);
}

}  // namespace ferry::internal
