// Part of Protocol: operations between their halves and at their end. It finishes receive halves in
// order, and publishes in read_through which operations this rank has finished.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "exchange/protocol/protocol.h"

namespace ferry::internal {

Status Protocol::settle(std::uint64_t through) {
  for (const auto& operation : in_flight_) {
    if (operation->outcome_ || operation->number() > through) continue;
    if (Status status = finish(*operation); !status.group_usable()) return status;
  }
  return {};
}

Status Protocol::finish(InFlight& operation) {
  if (!operation.outcome_) {
    Status status = operation.receive();
    if (status.ok() && lapped(operation.issued())) {
      status = {Code::kMismatch,
                fmt::format("operation {}: the others went on without rank {}, and the rows that "
                            "it read may be of a later operation",
                            operation.number(), setup_.rank),
                setup_.rank};
    }
    operation.outcome_ = status;
    if (status.group_usable()) conclude(operation.issued());
  }
  return *operation.outcome_;
}

// Marks an operation as finished on this rank, whatever its outcome, and raises read_through to the
// last operation up to which all are finished.
void Protocol::conclude(const Issued& issued) {
  const std::uint64_t number = issued.number;
  ControlFlags& mine = view_.control(setup_.rank);
  const bool takes_part = issued.active->contains_me();
  // Relaxed: this rank is the only writer.
  if (takes_part &&
      mine.progress.load(std::memory_order_relaxed) < progress_of(number, Stage::kDelivered)) {
    publish(number, Stage::kDelivered);
  }
  FERRY_CHECK(number, <=, issued_);
  FERRY_CHECK(number, >, read_through_);
  FERRY_CHECK(std::ranges::count(early_, number), ==, 0);
  early_.push_back(number);
  std::uint64_t through = read_through_;
  while (std::erase(early_, through + 1) > 0) ++through;
  if (through == read_through_) return;
  read_through_ = through;
  raise(mine.read_through, through);
  group_.ring();
  // After a dispatch that is this rank's last operation so far, no message is sent: the message of
  // the next operation brings read_through. No rank waits for read_through earlier, except for a
  // short time when the next operation leaves this rank out (let_last_set_finish).
  const bool sent_later =
      takes_part && issued.kind == OperationKind::kDispatch && number == issued_;
  if (!sent_later) ways_.send_read_through(number);
}

// Ends a call: waits until the messages that others wait for have been sent, since it may be long
// until this rank calls ferry again. A rank that is left out waits for no rank, so it only calls
// progress().
Status Protocol::leave(const Issued& issued, const Status& status) {
  if (ways_.none() || !status.group_usable()) return status;
  if (!issued.active->contains_me()) {
    group_.progress();
    return status;
  }
  Status left = group_.await_sent(awaiting(issued, "room", 0), ways_.mates());
  return status.ok() || !left.group_usable() ? left : status;
}

// The operation is counted as finished, so that the numbers of this rank stay those of the others.
void Protocol::keep_out(std::unique_ptr<InFlight> operation) {
  FERRY_CHECK(operation->number(), ==, issued_);
  operation->outcome_ = Status{};
  conclude(operation->issued());
  keep(std::move(operation));
}

InFlight* Protocol::find(Operation operation, OperationKind kind) const noexcept {
  for (const auto& sent : in_flight_)
    if (sent->number() == operation.number && sent->issued().kind == kind) return sent.get();
  return nullptr;
}

Status Protocol::not_in_flight(Operation operation, OperationKind kind) const {
  if (operation.number > 0 && operation.number <= of_view_.before) {
    return {Code::kInvalidArgument,
            fmt::format("operation {}, a {}, ended with the view that it began in; this is view {}",
                        operation.number, kind_name(kind), group_.view().number),
            setup_.rank};
  }
  return {
      Code::kInvalidArgument,
      fmt::format("operation {} is not a {} in flight on this exchange ({} issued, {} in flight)",
                  operation.number, kind_name(kind), issued_, in_flight_.size()),
      setup_.rank};
}

bool Protocol::delivered(const Issued& issued, int peer) const noexcept {
  const ControlFlags& theirs = view_.control(peer);
  const std::uint64_t delivered = progress_of(issued.number, Stage::kDelivered);
  const bool both_ways = ways_.both(*issued.active) && !view_.here(peer);
  // Acquire: the rows of `peer` are written before this rank reads them. Partners: publish(), and
  // the rank that stores rows of `peer` in this node.
  return theirs.progress.load(std::memory_order_acquire) >= delivered &&
         (!both_ways || theirs.second_way.load(std::memory_order_acquire) >= delivered);
}

Status Protocol::collect(Operation operation, OperationKind kind,
                         std::unique_ptr<InFlight>& collected) {
  if (Status verdict = group_.verdict(); !verdict.ok()) return verdict;
  InFlight* found = find(operation, kind);
  if (!found) return not_in_flight(operation, kind);
  const Status status = finish(*found);
  for (auto& sent : in_flight_)
    if (sent.get() == found) collected = std::move(sent);
  FERRY_CHECK(collected.get(), ==, found);
  FERRY_CHECK(collected->outcome_.has_value(), ==, true);
  std::erase(in_flight_, nullptr);
  return leave(collected->issued(), status);
}

bool Protocol::poll(Operation operation) noexcept {
  for (const auto& sent : in_flight_) {
    if (sent->number() != operation.number) continue;
    if (sent->outcome_ || !group_.usable()) return true;
    group_.progress();
    return std::ranges::all_of(sent->active().ranks,
                               [&](int peer) { return delivered(sent->issued(), peer); });
  }
  return true;  // not in flight: the receive half returns its error at once
}

}  // namespace ferry::internal
