// Protocol: how the ranks of an exchange agree on each operation. It numbers operations, writes
// this rank's record and flags, waits for those of the others, judges what all of them said, and
// keeps operations between their halves. It knows no row. docs/protocol.md says why this is enough.
//   protocol.cc   numbers, flags, waits     verdict.cc  what the records of all ranks amount to
//   in_flight.cc  operations between their halves, and at their end
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exchange/setup/record.h"
#include "exchange/setup/setup.h"
#include "exchange/setup/window_view.h"
#include "exchange/ways/ways.h"
#include "ferry/exchange.h"
#include "group/state.h"
#include "group/wait.h"
#include "routing/active_set.h"

namespace ferry::internal {

// An operation that has its number.
struct Issued {
  std::uint64_t number = 0;
  OperationKind kind = OperationKind::kNone;
  std::shared_ptr<const ActiveSet> active = {};
  std::chrono::nanoseconds deadline{0};  // of each of its calls
  // False: the caller named ranks that no set can have, and `active` are all ranks.
  bool set_known = true;
};

// What a wait for progress may need besides; the members are those of Await.
struct AwaitOptions {
  std::vector<std::int64_t>* wait_ns = nullptr;
  const std::vector<bool>* only = nullptr;
  const std::function<std::int64_t()>* meanwhile = nullptr;
};

// An operation between its halves: a Dispatch or a Combine.
class InFlight {
 public:
  explicit InFlight(const Issued& issued) : issued_(issued) {}
  virtual ~InFlight() = default;

  // The receive half, once.
  virtual Status receive() = 0;

  const Issued& issued() const noexcept { return issued_; }
  std::uint64_t number() const noexcept { return issued_.number; }
  const ActiveSet& active() const noexcept { return *issued_.active; }

 private:
  friend class Protocol;

  Issued issued_;
  std::optional<Status> outcome_ = {};  // of the receive half
};

class Protocol {
 public:
  Protocol(GroupState& group, const Setup& setup, const WindowView& view, const Ways& ways);
  // At the end of the exchange: waits of peers for this rank pass from now on, and find that its
  // record is missing. Of a broken group they end by themselves.
  void close() noexcept;

  // Every operation starts here: it takes the next number, and what is `depth` behind it is
  // finished first. A deadline of 0 is the group's.
  Status begin(std::chrono::nanoseconds deadline);
  // The receive half as a call of its own has the whole deadline again.
  void begin_receive(Operation operation) noexcept;
  // The ranks that take part in the operation just begun; empty: all. An error is this rank's
  // refusal.
  Status choose_active(std::span<const int> chosen);
  // The operation just begun.
  Issued issue(OperationKind kind) const;
  // Refuses when `depth` operations are in flight.
  Status check_depth(OperationKind kind) const;

  // What every record of this rank says, a refusal's too; it is published with the next flag.
  // `digest`: that of the caller (Digests).
  Record& new_record(std::uint64_t number, const Terms& terms, std::uint64_t digest = 0);
  void publish(std::uint64_t number, Stage stage);
  // Waits until progress of all active ranks, or of those in `only`, is up.
  Status await(const Issued& issued, const char* phase, Stage stage,
               const AwaitOptions& options = {});
  // Waits until no rank reads what operations up to `number` published.
  Status await_read_through(const Issued& issued, std::uint64_t number);
  // What every wait of an operation says; its flags, and for whom, follow.
  Await awaiting(const Issued& issued, const char* phase, std::uint64_t value) noexcept;
  // The last operation that all ranks have finished.
  std::uint64_t min_read_through() const noexcept;

  // What all ranks said of an operation, once all have said it. The same outcome on every rank but
  // the culprit. `digests` (may be null): Digests::all.
  Status examine(const Issued& issued, std::vector<std::uint64_t>* digests = nullptr);
  // Whether `peer`, whose part is there, makes the same call as this rank. What other ranks say may
  // still end the operation.
  bool agrees_with_me(const Issued& issued, int peer) const noexcept;
  // `peer` destroyed its exchange before the operation: kMismatch, with `text`, unless it is about
  // to end or leave.
  Status destroyed(const Issued& issued, const char* phase, int peer, const std::string& text);
  // Whether weights travel: what the ranks that have rows say.
  Agreed agreed_weights(const Issued& issued) const noexcept;

  // A refused call still takes part: its record says why, so that every rank returns an error and
  // goes on. A rank that is left out, or does not know who takes part, does not wait for them.
  // Returns `why`, or what broke.
  Status refuse(const Issued& issued, const Status& why);
  // Takes part without a call of this exchange: ok when all ranks do (Exchange::skip).
  Status skip(const Issued& issued, std::string_view why, const Digests& digests);
  // Ends a send half with an error that all ranks see.
  Status fail(const Issued& issued, const Status& why);
  // Keeps an operation whose send half is done.
  void keep(std::unique_ptr<InFlight> operation) { in_flight_.push_back(std::move(operation)); }
  // Keeps one that this rank takes no part in, and is done with.
  void keep_out(std::unique_ptr<InFlight> operation);
  // Finishes this rank's receive halves up to `through`. The error of one is returned when it is
  // collected, unless the group broke.
  Status settle(std::uint64_t through);
  // An operation that was sent and not collected; nullptr where there is none: not_in_flight()
  // is its error.
  InFlight* find(Operation operation, OperationKind kind) const noexcept;
  Status not_in_flight(Operation operation, OperationKind kind) const;
  // Finishes an operation and hands it over, whatever its outcome, which is returned.
  Status collect(Operation operation, OperationKind kind, std::unique_ptr<InFlight>& collected);
  // Whether a rank's part of an operation is there; what it wrote may then be read.
  bool delivered(const Issued& issued, int peer) const noexcept;
  // True when collect() would not wait.
  bool poll(Operation operation) noexcept;

 private:
  Status await_second_way(Await await);
  Await awaiting_flags(const Issued& issued, const char* phase, std::uint64_t value) noexcept;
  Await awaiting_reads(const Issued& issued, std::uint64_t number) noexcept;
  Status finish(InFlight& operation);
  bool may_write_record(const Issued& issued);
  // Records of a rank; that of operation n replaces that of n minus this.
  std::uint64_t num_records() const noexcept { return 2 * std::uint64_t(setup_.config.depth); }
  // How long this rank waits for ranks that may make no call any more.
  std::chrono::nanoseconds longest_wait_for_absent() const noexcept;
  Status refuse_to_everybody();
  Status await_readers_of_refusals();
  void conclude(const Issued& issued);
  Status leave(const Issued& issued, const Status& status);
  // `last_hop`: of the table over which the others send what they have read.
  Status let_last_set_finish(const std::vector<int>* last_hop);
  bool lapped(const Issued& issued) const noexcept;
  // Waits until the records of all active ranks are there.
  Status await_records(const Issued& issued);
  Status judge_skips(const Issued& issued) const;
  Status name_mismatch(const Issued& issued) const;
  std::string describe(int rank, std::uint64_t number) const;

  GroupState& group_;
  const Setup& setup_;
  WindowView view_;
  Ways ways_;
  bool crowded_;

  CallTime call_;                                     // of the call that is in progress
  std::uint64_t issued_ = 0;                          // number of the last operation
  std::uint64_t read_through_ = 0;                    // this rank's published read_through
  std::vector<std::uint64_t> early_;                  // finished operations after read_through_
  std::vector<std::unique_ptr<InFlight>> in_flight_;  // sent, not collected; at most depth
  std::shared_ptr<const ActiveSet> active_;           // of the last operation
  std::shared_ptr<const ActiveSet> last_set_;         // of the last one that this rank took part in
  std::uint64_t last_taken_ = 0;                      // its number
  bool set_known_ = true;                             // Issued::set_known of the last operation
  std::uint64_t refused_alone_ = 0;  // the last operation that was refused without a wait
};

}  // namespace ferry::internal
