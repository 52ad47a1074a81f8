// ferry_dispatch, ferry_combine, their halves, and the lifetime of rows and handles.
#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "base/check.h"
#include "capi/boundary.h"
#include "capi/convert.h"
#include "capi/objects.h"
#include "ferry/exchange.h"

using namespace ferry::capi;
using ferry::Operation;
using ferry::Status;

namespace {

// Frees the object that a struct of the caller owns, and clears the struct.
template <typename Owner, typename Struct>
void release(Struct* given, const char* name) {
  check_struct(given, name);
  destroy(static_cast<Owner*>(given->owner));
  write(Struct{}, given);
}

// Clears `received`, and makes the object that will own its rows.
Owned<ReceivedOwner> owner_for(const ferry_exchange& exchange, ferry_received* received) {
  release<ReceivedOwner>(received, "ferry_received");
  return Owned<ReceivedOwner>(make<ReceivedOwner>(exchange.allocator));
}

Status hand_over(Status status, Owned<ReceivedOwner> owner, ferry_received* received) {
  if (!status.ok()) return status;
  FERRY_CHECK(std::ssize(owner->received.sources), ==, 3 * owner->received.num_rows);
  owner->handle.handle = owner->received.handle;
  write(from_received(*owner), received);
  static_cast<void>(owner.release());
  return status;
}

std::span<const int> ranks_of(const ferry::CombineArgs& args) {
  return args.handle || args.dispatched ? args.chosen_ranks() : ferry::kUnknownRanks;
}

}  // namespace

// A call that this layer refuses is passed to the engine as a refusal: the call then fails on the
// other ranks too, and the group stays usable.

ferry_code ferry_dispatch(ferry_exchange* exchange, const ferry_dispatch_args* args,
                          ferry_received* received) {
  return guarded([&] {
    ferry_exchange& used = required(exchange, "exchange");
    Owned<ReceivedOwner> owner;
    ferry::DispatchArgs given{.active_ranks = ferry::kUnknownRanks};
    const Status refusal = attempt(used.rank, [&] {
      given = to_dispatch_args(args);  // before owner_for() clears `received`
      owner = owner_for(used, received);
    });
    if (!refusal.ok()) return used.exchange.refuse_dispatch(refusal, given.chosen_ranks());
    Status status = used.exchange.dispatch(given, owner->received);
    return hand_over(std::move(status), std::move(owner), received);
  });
}

ferry_code ferry_combine(ferry_exchange* exchange, const ferry_combine_args* args) {
  return guarded([&] {
    ferry_exchange& used = required(exchange, "exchange");
    ferry::DispatchArgs dispatched;
    ferry::CombineArgs given;
    const Status refusal = attempt(used.rank, [&] { given = to_combine_args(args, dispatched); });
    if (!refusal.ok()) return used.exchange.refuse_combine(refusal, ranks_of(given));
    return used.exchange.combine(given);
  });
}

ferry_code ferry_dispatch_send(ferry_exchange* exchange, const ferry_dispatch_args* args,
                               uint64_t* operation) {
  return guarded([&] {
    ferry_exchange& used = required(exchange, "exchange");
    ferry::DispatchArgs given{.active_ranks = ferry::kUnknownRanks};
    const Status refusal = attempt(used.rank, [&] {
      required(operation, "operation") = 0;
      given = to_dispatch_args(args);
    });
    if (!refusal.ok()) return used.exchange.refuse_dispatch(refusal, given.chosen_ranks());
    Operation sent;
    Status status = used.exchange.dispatch_send(given, sent);
    if (status.ok()) *operation = sent.number;
    return status;
  });
}

ferry_code ferry_dispatch_recv(ferry_exchange* exchange, uint64_t operation,
                               ferry_received* received) {
  return guarded([&] {
    ferry_exchange& used = required(exchange, "exchange");
    Owned<ReceivedOwner> owner = owner_for(used, received);
    Status status = used.exchange.dispatch_recv({operation}, owner->received);
    return hand_over(std::move(status), std::move(owner), received);
  });
}

ferry_code ferry_combine_send(ferry_exchange* exchange, const ferry_combine_args* args,
                              uint64_t* operation) {
  return guarded([&] {
    ferry_exchange& used = required(exchange, "exchange");
    auto dispatched = std::make_unique<ferry::DispatchArgs>();
    ferry::CombineArgs given;
    const Status refusal = attempt(used.rank, [&] {
      required(operation, "operation") = 0;
      given = to_combine_args(args, *dispatched);
      used.kept.reserve(used.kept.size() + 1);
    });
    if (!refusal.ok()) return used.exchange.refuse_combine(refusal, ranks_of(given));
    Operation sent;
    Status status = used.exchange.combine_send(given, sent);
    if (!status.ok()) return status;
    if (given.dispatched) used.kept.push_back({sent.number, std::move(dispatched)});
    *operation = sent.number;
    return status;
  });
}

ferry_code ferry_combine_recv(ferry_exchange* exchange, uint64_t operation) {
  return guarded([&] {
    ferry_exchange& used = required(exchange, "exchange");
    Status status = used.exchange.combine_recv({operation});
    std::erase_if(used.kept, [&](const KeptDispatch& kept) { return kept.operation == operation; });
    return status;
  });
}

int32_t ferry_poll(ferry_exchange* exchange, uint64_t operation) {
  return !exchange || exchange->exchange.poll({operation});
}

ferry_code ferry_received_release(ferry_received* received) {
  return guarded([&] { release<ReceivedOwner>(received, "ferry_received"); });
}

ferry_code ferry_allocate_outputs(ferry_exchange* exchange, int64_t num_rows, int64_t hidden,
                                  int32_t dtype, ferry_output_rows* outputs) {
  return guarded([&]() -> Status {
    ferry_exchange& used = required(exchange, "exchange");
    release<OutputsOwner>(outputs, "ferry_output_rows");
    Owned<OutputsOwner> owner(make<OutputsOwner>(used.allocator));
    Status status = used.exchange.allocate_outputs(num_rows, hidden,
                                                   enum_of<ferry::DataType>(dtype), owner->rows);
    if (!status.ok()) return status;
    write(from_output_rows(*owner), outputs);
    static_cast<void>(owner.release());
    return status;
  });
}

ferry_code ferry_output_rows_release(ferry_output_rows* outputs) {
  return guarded([&] { release<OutputsOwner>(outputs, "ferry_output_rows"); });
}

ferry_code ferry_may_write(ferry_exchange* exchange, const void* rows, int32_t* may) {
  return guarded([&] {
    required(may, "may") = 0;
    bool free = false;
    Status status = required(exchange, "exchange").exchange.may_write(rows, free);
    *may = free;
    return status;
  });
}

ferry_code ferry_handle_keep(const ferry_handle* handle, ferry_handle** kept) {
  return guarded([&] {
    required(kept, "kept") = nullptr;
    const ferry_handle& from = required(handle, "handle");
    *kept = make<ferry_handle>(from.allocator, from.handle);
  });
}

void ferry_handle_free(ferry_handle* handle) { destroy(handle); }

ferry_code ferry_handle_counts(const ferry_handle* handle, ferry_counts* counts) {
  return guarded([&] {
    const ferry_handle& kept = required(handle, "handle");
    check_struct(counts, "ferry_counts");
    write(from_handle(kept.handle), counts);
  });
}
