// Protocol: how the ranks of an exchange agree on each operation. It numbers operations, writes
// this rank's record and flags, waits for those of the others, compares all records, and keeps
// operations between their halves. It does not touch rows. docs/protocol.md has the proofs.
//   protocol.cc   numbers, flags, waits     verdict.cc  the outcome that follows from all records
//   in_flight.cc  operations between their halves, and at their end
//   next_view.cc  how the exchange goes on in the next view of its group
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

// An operation that has a number, with its ranks and its deadline.
struct Issued {
  std::uint64_t number = 0;
  OperationKind kind = OperationKind::kNone;
  std::shared_ptr<const ActiveSet> active = {};
  std::chrono::nanoseconds deadline{0};  // for each of its calls
  // False: the ranks that the caller named are not a valid set. `active` then has all ranks of the
  // view.
  bool set_known = true;
};

// Options of a wait for progress. The fields are those of Await.
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

  // Runs the receive half. Called once.
  virtual Status receive() = 0;

  const Issued& issued() const noexcept { return issued_; }
  std::uint64_t number() const noexcept { return issued_.number; }
  const ActiveSet& active() const noexcept { return *issued_.active; }

 private:
  friend class Protocol;

  Issued issued_;
  std::optional<Status> outcome_ = {};  // outcome of the receive half
};

class Protocol {
 public:
  Protocol(GroupState& group, const Setup& setup, const WindowView& view, const Ways& ways);
  // Call at the end of the exchange. From then on, waits of peers for this rank pass, and the peers
  // find that its record is missing. In a broken group, where waits end by themselves, nothing is
  // written before the next view begins.
  void close() noexcept;

  // These run between two views of the group (next_view.cc), when the caller's calls have ended.
  void prepare(std::uint64_t next) noexcept { prepare(view_.control(setup_.rank), next, issued_); }
  // The same for a rank whose last operation has this number.
  static void prepare(ControlFlags& mine, std::uint64_t next, std::uint64_t number) noexcept;
  void renew(const View& view) noexcept;
  void append_prepared(std::uint64_t next, std::vector<Lasting::Prepared>& known) const;
  void store_prepared(std::uint64_t next, const std::vector<Lasting::Prepared>& known) noexcept;
  // Why the ranks of the view cannot use the exchange; else ok.
  const Status& fits_view() const noexcept { return of_view_.unfit; }

  // Every operation starts here: it takes the next number. Finishes this rank's operations whose
  // numbers are lower by `depth` or more. A deadline of 0 is the group's.
  Status begin(std::chrono::nanoseconds deadline);
  // Restarts the deadline: a receive half that is a call of its own has the whole deadline.
  void begin_receive(Operation operation) noexcept;
  // Sets the ranks that take part in the operation that has just begun; empty: all of the view. An
  // error is this rank's refusal, or that of a wait that broke the group; refuse() takes both.
  Status choose_active(std::span<const int> named);
  // The operation that has just begun.
  Issued issue(OperationKind kind) const;
  // Refuses when `depth` operations are in flight.
  Status check_depth(OperationKind kind) const;

  // Starts the record of an operation: sets the fields that every record has, even that of a
  // refusal. The next publish() shows it to other ranks. `digest`: given by the caller (Digests).
  Record& new_record(std::uint64_t number, const Terms& terms, std::uint64_t digest = 0);
  void publish(std::uint64_t number, Stage stage);
  // Whether other ranks may read this rank's record of an operation.
  bool is_announced(std::uint64_t number) const noexcept;
  // Waits until all active ranks, or those in options.only, have reached `stage` of the operation.
  Status await(const Issued& issued, const char* phase, Stage stage,
               const AwaitOptions& options = {});
  // Waits until all ranks of the operation have finished the operations up to `number`, so that
  // none of these ranks still reads what those operations published.
  Status await_read_through(const Issued& issued, std::uint64_t number);
  // An Await with the fields that all waits of an operation share. The caller adds the flags, and
  // the ranks if they are not the active ones.
  Await awaiting(const Issued& issued, const char* phase, std::uint64_t value) noexcept;
  // The number up to which every rank of this rank's last operation has finished all operations.
  std::uint64_t min_read_through() const noexcept;

  // Compares the records of all ranks, once all are there. The outcome is the same on every rank,
  // except where judge_skips() returns one code on ranks that skip and another on ranks that call.
  // `digests` (may be null): receives the digests of all ranks (Digests::all).
  Status examine(const Issued& issued, std::vector<std::uint64_t>* digests = nullptr);
  // Whether `peer`, whose record is there, makes the same call as this rank. The records of other
  // ranks may still end the operation.
  bool agrees_with_me(const Issued& issued, int peer) const noexcept;
  // The error of an operation before which `peer` destroyed its exchange: kMismatch, with `text`.
  // If `peer` ends or leaves the group within a short time, the error is that of its loss.
  Status destroyed(const Issued& issued, const char* phase, int peer, const std::string& text);
  // Whether weights travel, as the first rank with rows says in its record; kAny: no rank has rows.
  Agreed agreed_weights(const Issued& issued) const noexcept;

  // A refused call still takes part: its record has the reason, so that every rank returns an error
  // and goes on. A rank that is left out, or that named an invalid set of ranks, does not wait for
  // the others. Returns `why`, or the error of a wait that failed. `digests` (may be null): as in
  // examine().
  Status refuse(const Issued& issued, const Status& why, std::vector<std::uint64_t>* digests);
  // Takes part in an operation without a call. Returns ok if all ranks skip it (Exchange::skip).
  Status skip(const Issued& issued, std::string_view why, const Digests& digests);
  // Ends an operation in its send half: with an outcome that all ranks share, or with the error of
  // a wait that broke the group.
  Status fail(const Issued& issued, const Status& why);
  // Keeps an operation whose send half is done.
  void keep(std::unique_ptr<InFlight> operation) { in_flight_.push_back(std::move(operation)); }
  // Keeps an operation in which this rank takes no part, as finished.
  void keep_out(std::unique_ptr<InFlight> operation);
  // Finishes this rank's receive halves up to operation `through`. An error of one of them is
  // returned when it is collected; here it is returned only if it broke the group.
  Status settle(std::uint64_t through);
  // The operation, if its send half is done and it is not collected; otherwise nullptr, and
  // not_in_flight() is the error to return.
  InFlight* find(Operation operation, OperationKind kind) const noexcept;
  Status not_in_flight(Operation operation, OperationKind kind) const;
  // Finishes an operation, moves it to `collected` and returns its outcome.
  Status collect(Operation operation, OperationKind kind, std::unique_ptr<InFlight>& collected);
  // Whether a rank has delivered its part of an operation. If so, this rank may read that part.
  bool delivered(const Issued& issued, int peer) const noexcept;
  // True when collect() would not wait for `progress` of other ranks. Between nodes, collect() may
  // still wait for the sums and requests of a combine, and for room.
  bool poll(Operation operation) noexcept;

 private:
  Status take_members(const View& view);
  Status await_second_way(Await await);
  Await awaiting_flags(const Issued& issued, const char* phase, std::uint64_t value) noexcept;
  Await awaiting_reads(const Issued& issued, std::uint64_t number) noexcept;
  Status finish(InFlight& operation);
  bool may_write_record(const Issued& issued);
  // The number of records that a rank keeps: the record of operation n replaces that of operation
  // n - num_records().
  std::uint64_t num_records() const noexcept { return 2 * std::uint64_t(setup_.config.depth); }
  // How long this rank waits for ranks that may make no more calls.
  std::chrono::nanoseconds longest_wait_for_absent() const noexcept;
  std::shared_ptr<const ActiveSet> find_set(std::span<const int> chosen) const;
  bool set_changes() const noexcept;
  Status refuse_to_everybody();
  Status await_readers_of_refusals();
  void conclude(const Issued& issued);
  Status leave(const Issued& issued, const Status& status);
  // `last_hop`: the last hops of the table by which the others send their read_through.
  Status let_last_set_finish(const std::vector<int>* last_hop);
  bool lapped(const Issued& issued) const noexcept;
  // Waits until the records of all active ranks are there.
  Status await_records(const Issued& issued);
  Status judge_skips(const Issued& issued) const;
  Status name_mismatch(const Issued& issued) const;
  std::string describe(int rank, std::uint64_t number) const;
  // Whether the records of all ranks are there, and name the same active ranks.
  bool all_name_same_ranks(const Issued& issued) const noexcept;
  void read_digests(const Issued& issued, std::vector<std::uint64_t>* digests) const;

  GroupState& group_;
  const Setup& setup_;
  WindowView view_;
  Ways ways_;
  bool crowded_;

  CallTime call_;                                     // deadline of the call in progress
  std::uint64_t issued_ = 0;                          // number of the last operation
  std::uint64_t read_through_ = 0;                    // this rank's published read_through
  std::vector<std::uint64_t> early_;                  // finished operations after read_through_
  std::vector<std::unique_ptr<InFlight>> in_flight_;  // sent, not collected; at most depth
  // The values of this exchange that follow from the view of the group.
  struct OfView {
    std::shared_ptr<const ActiveSet> ranks;  // ranks of a call that names none
    Status unfit = {};                       // why the view cannot use the exchange
    std::uint64_t before = 0;                // the last operation before the view
  } of_view_;
  std::shared_ptr<const ActiveSet> active_;  // ranks of the last operation
  // The last operation in which this rank takes part, and its ranks.
  struct Taken {
    std::shared_ptr<const ActiveSet> set;
    std::uint64_t number = 0;
  } last_;
  bool set_known_ = true;            // Issued::set_known of the last operation
  std::uint64_t refused_alone_ = 0;  // the last operation that was refused without a wait
};

}  // namespace ferry::internal
