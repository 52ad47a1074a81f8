// The public Exchange and Handle. Calls that return a Status turn exceptions of the implementation
// into one, and return kClosed where the Exchange has no state. The constructor, join(), refuse()
// and the getters of Exchange throw Error.
#include "ferry/exchange.h"

#include "exchange/public_calls.h"
#include "exchange/setup/agreement.h"
#include "exchange/state.h"

namespace ferry {

using internal::ExchangeState;
using internal::guarded;
using internal::guarded_together;
using internal::made;

Exchange::Exchange(const Group& group, const ExchangeConfig& config) {
  const internal::Making counted(group.state());
  state_ = std::make_shared<ExchangeState>(group.state(), config, false);
}

Exchange Exchange::join(const Group& group, const ExchangeConfig& config) {
  const internal::Making counted(group.state());
  Exchange joined;
  joined.state_ = std::make_shared<ExchangeState>(group.state(), config, true);
  return joined;
}

void Exchange::refuse(const Group& group, const Status& why) {
  const internal::Making counted(group.state());
  internal::GroupState& members = internal::usable(group.state());
  internal::refuse_setup(members, Error(why.code(), why.message(), why.culprit()),
                         members.deadline());
}

Status Exchange::dispatch_send(const DispatchArgs& args, Operation& operation) noexcept {
  return guarded_together(
      state_, [&](ExchangeState& state) { return state.dispatch_send(args, operation); });
}

Status Exchange::dispatch_recv(Operation operation, Received& received) noexcept {
  return guarded_together(state_, [&](ExchangeState& state) {
    state.begin_receive(operation);
    return state.dispatch_recv(operation, received);
  });
}

Status Exchange::ready_experts(Operation operation, std::vector<bool>& ready) noexcept {
  return guarded(state_,
                 [&](ExchangeState& state) { return state.ready_experts(operation, ready); });
}

Status Exchange::combine_send(const CombineArgs& args, Operation& operation) noexcept {
  return guarded_together(
      state_, [&](ExchangeState& state) { return state.combine_send(args, operation); });
}

Status Exchange::combine_recv(Operation operation) noexcept {
  return guarded_together(state_, [&](ExchangeState& state) {
    state.begin_receive(operation);
    return state.combine_recv(operation);
  });
}

Status Exchange::dispatch(const DispatchArgs& args, Received& received) noexcept {
  received.release();  // so that the new rows go to its buffer, which the caches may still hold
  return guarded_together(state_, [&](ExchangeState& state) {
    Operation operation;
    const Status status = state.dispatch_send(args, operation);
    return status.ok() ? state.dispatch_recv(operation, received) : status;
  });
}

Status Exchange::combine(const CombineArgs& args) noexcept {
  return guarded_together(state_, [&](ExchangeState& state) {
    Operation operation;
    const Status status = state.combine_send(args, operation);
    return status.ok() ? state.combine_recv(operation) : status;
  });
}

Status Exchange::dispatch_memory(Operation operation, Received& received) noexcept {
  return guarded(state_,
                 [&](ExchangeState& state) { return state.dispatch_memory(operation, received); });
}

bool Exchange::poll(Operation operation) noexcept { return !state_ || state_->poll(operation); }

Status Exchange::refuse_dispatch(const Status& why, std::span<const int> active_ranks,
                                 std::vector<std::uint64_t>* digests) noexcept {
  return guarded_together(state_, [&](ExchangeState& state) {
    return state.refuse(internal::OperationKind::kDispatch, why, active_ranks, digests);
  });
}

Status Exchange::refuse_combine(const Status& why, std::span<const int> active_ranks,
                                std::vector<std::uint64_t>* digests) noexcept {
  return guarded_together(state_, [&](ExchangeState& state) {
    return state.refuse(internal::OperationKind::kCombine, why, active_ranks, digests);
  });
}

Status Exchange::skip(std::string_view why, const Digests& digests,
                      std::span<const int> active_ranks) noexcept {
  return guarded_together(
      state_, [&](ExchangeState& state) { return state.skip(why, digests, active_ranks); });
}

Status Exchange::allocate_outputs(std::int64_t num_rows, std::int64_t hidden, DataType dtype,
                                  OutputRows& outputs) noexcept {
  return guarded(state_, [&](ExchangeState& state) {
    return state.allocate_outputs(num_rows, hidden, dtype, outputs);
  });
}

Status Exchange::may_write(const void* rows, bool& may) noexcept {
  may = false;
  return guarded(state_, [&](ExchangeState& state) { return state.may_write(rows, may); });
}

const ExchangeConfig& Exchange::config() const { return made(state_).config(); }
int Exchange::num_local_experts() const { return made(state_).num_local_experts(); }
WindowBytes Exchange::window_bytes() const { return made(state_).window_bytes(); }
ExchangeStats Exchange::stats() const { return made(state_).stats(); }
std::vector<CrossedBytes> Exchange::crossed_bytes() const { return made(state_).crossed_bytes(); }
const AlgorithmChoice& Exchange::algorithm() const { return made(state_).algorithm(); }
const OperationTimes& Exchange::last_dispatch_times() const {
  return made(state_).last_dispatch_times();
}
const OperationTimes& Exchange::last_combine_times() const {
  return made(state_).last_combine_times();
}

std::int64_t Handle::num_tokens() const noexcept { return route_ ? route_->num_tokens : 0; }
std::int64_t Handle::num_rows() const noexcept { return route_ ? route_->received.num_rows : 0; }

std::span<const int> Handle::active_ranks() const noexcept {
  return route_ ? std::span<const int>(route_->active->chosen) : std::span<const int>();
}

namespace {

std::span<const std::int64_t> view(
    const std::shared_ptr<const internal::Route>& route,
    std::vector<std::int64_t> internal::ReceivedRows::*part) noexcept {
  return route ? std::span<const std::int64_t>(route->received.*part)
               : std::span<const std::int64_t>();
}

}  // namespace

std::span<const std::int64_t> Handle::tokens_per_expert() const noexcept {
  return view(route_, &internal::ReceivedRows::tokens_per_expert);
}
std::span<const std::int64_t> Handle::aligned_tokens_per_expert() const noexcept {
  return view(route_, &internal::ReceivedRows::aligned_tokens_per_expert);
}
std::span<const std::int64_t> Handle::expert_offsets() const noexcept {
  return view(route_, &internal::ReceivedRows::expert_offsets);
}
std::span<const std::int64_t> Handle::running_counts() const noexcept {
  return view(route_, &internal::ReceivedRows::running_counts);
}
std::span<const std::int64_t> Handle::running_rows_per_rank() const noexcept {
  return view(route_, &internal::ReceivedRows::running_rows_per_rank);
}
std::span<const std::int64_t> Handle::tokens_per_rank() const noexcept {
  return route_ ? std::span<const std::int64_t>(route_->tokens_per_rank)
                : std::span<const std::int64_t>();
}
std::span<const std::int64_t> Handle::rows_sent() const noexcept {
  return route_ ? std::span<const std::int64_t>(route_->rows_sent)
                : std::span<const std::int64_t>();
}

}  // namespace ferry
