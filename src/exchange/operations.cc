// The life of an operation: its number, its record, how it fails and when it is finished.
// docs/protocol.md tells why this is enough; the names are the same.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "exchange/internode/forwarder.h"
#include "exchange/state.h"

namespace ferry::internal {

const char* kind_name(Kind kind) noexcept {
  return kind == Kind::kDispatch ? "dispatch" : kind == Kind::kCombine ? "combine" : "nothing";
}

namespace {

// How long a change of the active ranks waits for those that are left out.
constexpr std::chrono::seconds kLastSetWait{1};

bool agree(const Terms& a, const Terms& b) {
  const bool weights =
      a.weights == b.weights || a.weights == Agreed::kAny || b.weights == Agreed::kAny;
  return weights && a.kind == b.kind && a.cached == b.cached && a.row_type == b.row_type &&
         a.hidden == b.hidden && a.route == b.route && a.num_active == b.num_active &&
         a.active == b.active;
}

}  // namespace

// Every operation starts here: it takes the next number, and what is `depth` behind it is finished
// first.
Status ExchangeState::begin() {
  if (Status verdict = group_->verdict(); !verdict.ok()) return verdict;
  ++issued_;
  const std::uint64_t depth = config_.depth;
  return issued_ > depth ? settle(issued_ - depth) : Status{};
}

// Finishes my own receive halves up to `through`. What went wrong in one is told when it is
// collected, unless the group broke.
Status ExchangeState::settle(std::uint64_t through) {
  for (InFlight& operation : in_flight_) {
    if (operation.finished || operation.number > through) continue;
    if (Status status = finish(operation); !status.group_usable()) return status;
  }
  return {};
}

Status ExchangeState::finish(InFlight& operation) {
  if (!operation.finished) {
    operation.status = operation.kind == Kind::kDispatch ? receive(operation) : reduce(operation);
    if (operation.status.ok() && lapped(operation)) {
      operation.status = {Code::kMismatch,
                          fmt::format("operation {}: the others went on without rank {}, what it "
                                      "read may be theirs of later",
                                      operation.number, rank_),
                          rank_};
    }
    operation.finished = true;
    if (forwarder_) forwarder_->forget_sums(operation.number, rank_);
    if (operation.status.group_usable()) conclude(operation.number);
  }
  return operation.status;
}

// Marks an operation finished here, whatever its outcome, and raises read_through over the finished
// prefix.
void ExchangeState::conclude(std::uint64_t number) noexcept {
  if (active_->contains_me() && control(rank_).progress.load(std::memory_order_relaxed) <
                                    progress_of(number, Stage::kDelivered)) {
    publish(number, Stage::kDelivered);
  }
  early_.push_back(number);
  std::uint64_t through = read_through_;
  for (auto next = early_.begin(); next != early_.end();) {
    next = std::find(early_.begin(), early_.end(), through + 1);
    if (next == early_.end()) break;
    early_.erase(next);
    next = early_.begin();
    ++through;
  }
  if (through == read_through_) return;
  read_through_ = through;
  raise(control(rank_).read_through, through);
  group_->ring();
  if (forwarder_) forwarder_->tell(number);
}

// Those that read my records and rows so far are not all among those that will keep me from writing
// over them. Whoever is stuck, which may be why it is left out, finds that it was lapped when it
// goes on (lapped).
void ExchangeState::let_last_set_finish() {
  const InFlight last{.number = issued_, .active = last_set_, .deadline = kLastSetWait};
  const Status finished = await_read_through(last, last_taken_, /*patient=*/true);
  if (!finished.ok())
    group_->log(GroupState::LogLevel::kWarn,
                fmt::format("exchange {}: rank {} is left behind in operation {}", id_,
                            finished.culprit(), last_taken_));
}

// True when the others went on without this rank: none of them gets further than `depth` operations
// past what this rank has announced while it takes part in them.
bool ExchangeState::lapped(const InFlight& operation) const noexcept {
  for (const int peer : operation.active->ranks) {
    // Acquire is as much as there is to order it after my reads: a diagnosis, not a guard.
    const std::uint64_t seen = control(peer).progress.load(std::memory_order_acquire);
    if (seen != kLeft && seen / 4 > issued_ + config_.depth) return true;
  }
  return false;
}

// A rank that does not take part counts the operation, so that it can come back, and is done. Its
// handle has no rows, and keeps it out of whatever is done with it.
Status ExchangeState::stay_out(Kind kind, Operation& operation) {
  operation.number = issued_;
  auto nothing = std::make_shared<Route>();
  nothing->exchange_id = id_;
  nothing->number = issued_;
  nothing->active = active_;
  in_flight_.push_back(
      {.number = issued_, .kind = kind, .finished = true, .active = active_, .route = nothing});
  conclude(issued_);
  return {};
}

ExchangeState::InFlight* ExchangeState::find(Operation operation, Kind kind) noexcept {
  const auto found = std::find_if(in_flight_.begin(), in_flight_.end(), [&](const InFlight& sent) {
    return sent.number == operation.number && sent.kind == kind;
  });
  return found == in_flight_.end() ? nullptr : &*found;
}

Status ExchangeState::collect(Operation operation, Kind kind, InFlight& collected) {
  if (Status verdict = group_->verdict(); !verdict.ok()) return verdict;
  InFlight* sent = find(operation, kind);
  if (sent == nullptr) {
    return {
        Code::kInvalidArgument,
        fmt::format("{}_recv: operation {} is not a {} in flight on this exchange ({} issued, {} "
                    "in flight)",
                    kind_name(kind), operation.number, kind_name(kind), issued_, in_flight_.size()),
        rank_};
  }
  Status status = finish(*sent);
  collected = std::move(*sent);
  in_flight_.erase(in_flight_.begin() + (sent - in_flight_.data()));
  return leave(collected, status);
}

// A refused call still takes part: its record is a poison, so that every rank returns an error and
// goes on.
Status ExchangeState::refuse(Kind kind, const Status& refusal, std::chrono::nanoseconds deadline,
                             bool* by_all) {
  Record& mine = new_record(issued_, {.kind = kind});
  mine.status = refusal.code();
  std::snprintf(mine.reason, sizeof mine.reason, "%s", refusal.message().c_str());
  publish(issued_, Stage::kDelivered);
  InFlight operation{.number = issued_, .kind = kind, .active = active_, .deadline = deadline};
  const std::uint64_t value =
      progress_of(issued_, kind == Kind::kDispatch ? Stage::kAnnounced : Stage::kDelivered);
  if (Status status = await(operation, "refusal", value, nullptr); !status.ok()) return status;
  if (by_all != nullptr) {
    const std::vector<int>& ranks = active_->ranks;
    *by_all = std::all_of(ranks.begin(), ranks.end(),
                          [&](int peer) { return record(peer, issued_).status != Code::kOk; });
  }
  conclude(issued_);
  return leave(operation, refusal);
}

Status ExchangeState::refuse_for_front(Kind kind, const Status& why,
                                       std::span<const int> active_ranks, bool* by_all) {
  if (Status status = begin(); !status.ok()) return status;
  if (Status status = check_active(active_ranks); !status.ok())
    return refuse(kind, status, group_->default_deadline());
  return refuse(kind, why, group_->default_deadline(), by_all);
}

// What all ranks said of operation `number`, once all have said it. The same verdict on every rank
// but the culprit.
Status ExchangeState::examine(const InFlight& operation) const {
  bool all_agree = true;
  const std::uint64_t number = operation.number;
  const Agreed weights = agreed_weights(operation);
  const std::vector<int>& ranks = operation.active->ranks;
  for (const int peer : ranks) {
    const Record& theirs = record(peer, number);
    if (theirs.number != number) {
      return {Code::kMismatch,
              fmt::format("operation {}: rank {} destroyed this exchange", number, peer), peer};
    }
    // A question about all ranks, not about each and me: a rank without rows would see no quarrel
    // between others.
    const Agreed said = theirs.terms.weights;
    all_agree = all_agree && agree(theirs.terms, record(ranks[0], number).terms) &&
                (said == Agreed::kAny || said == weights);
  }
  for (const int peer : ranks) {
    const Record& theirs = record(peer, number);
    if (theirs.status == Code::kOk) continue;
    return {Code::kPeerRejected,
            fmt::format("operation {}: rank {} refused its {} ({}): {}", number, peer,
                        kind_name(theirs.terms.kind), code_name(theirs.status), theirs.reason),
            peer};
  }
  return all_agree ? Status{} : name_mismatch(operation);
}

// The culprit is the first rank outside the largest set of ranks that agree.
Status ExchangeState::name_mismatch(const InFlight& operation) const {
  const std::uint64_t number = operation.number;
  const std::vector<int>& ranks = operation.active->ranks;
  int reference = ranks[0];
  std::int64_t most = 0;
  const auto agrees_with = [&](int rank) {
    return [this, number, rank](int peer) {
      return agree(record(peer, number).terms, record(rank, number).terms);
    };
  };
  for (const int rank : ranks) {
    const std::int64_t agreeing = std::count_if(ranks.begin(), ranks.end(), agrees_with(rank));
    if (agreeing > most) most = agreeing, reference = rank;
  }
  const auto culprit = std::find_if_not(ranks.begin(), ranks.end(), agrees_with(reference));
  const int other = culprit == ranks.end() ? reference : *culprit;
  return {Code::kMismatch,
          fmt::format("operation {}: rank {} called {}, rank {} called {}", number, other,
                      describe(other, number), reference, describe(reference, number)),
          other};
}

// A rank that is not active with everybody says with whom, as far as there is room (new_record).
std::string ExchangeState::describe(int rank, std::uint64_t number) const {
  const Record& theirs = record(rank, number);
  const Terms& terms = theirs.terms;
  const char* weights = terms.weights == Agreed::kYes  ? "with"
                        : terms.weights == Agreed::kNo ? "without"
                                                       : "any";
  return fmt::format("{}{} of {} {} {} row weights, handle of dispatch {}{}{}",
                     terms.cached ? "cached " : "", kind_name(terms.kind), terms.hidden,
                     data_type_name(terms.row_type), weights, terms.route,
                     theirs.reason[0] ? ", active ranks " : "", theirs.reason);
}

// What every wait of an operation says; its flags, and for whom, follow.
Await ExchangeState::awaiting(const InFlight& operation, const char* phase,
                              std::uint64_t value) const noexcept {
  return {.operation = kind_name(operation.kind),
          .number = operation.number,
          .phase = phase,
          .flags = nullptr,
          .stride_bytes = sizeof(std::atomic<std::uint64_t>),
          .value = value,
          .limit = operation.deadline,
          .crowded = crowded_,
          .only = &operation.active->waited};
}

// Words of all ranks, those of other nodes by way of a rank of mine.
Await ExchangeState::awaiting_words(const InFlight& operation, const char* phase,
                                    std::uint64_t value) const noexcept {
  Await await = awaiting(operation, phase, value);
  await.stride_bytes = layout_.control_bytes();
  await.last_hop = forwarder_ ? &forwarder_->table().last_hop : nullptr;
  return await;
}

Status ExchangeState::await(const InFlight& operation, const char* phase, std::uint64_t value,
                            std::vector<std::int64_t>* wait_ns, const std::vector<bool>* only) {
  Await await = awaiting_words(operation, phase, value);
  await.flags = &control(0).progress;
  await.wait_ns = wait_ns;
  if (only) await.only = only;
  return group_->wait(await);
}

Status ExchangeState::await_read_through(const InFlight& operation, std::uint64_t number,
                                         bool patient) {
  Await await = awaiting_words(operation, "reuse", number);
  await.flags = &control(0).read_through;
  await.patient = patient;
  return group_->wait(await);
}

std::uint64_t ExchangeState::min_read_through() const noexcept {
  std::uint64_t least = read_through_;
  // Whoever read my rows before the last set has finished (let_last_set_finish).
  for (const int peer : last_set_->ranks) {
    // Acquire: their reads come before my writes. Partner: conclude().
    if (peer != rank_)
      least = std::min(least, control(peer).read_through.load(std::memory_order_acquire));
  }
  return least;
}

// Whether weights travel: what the ranks that have rows say.
Agreed ExchangeState::agreed_weights(const InFlight& operation) const noexcept {
  for (const int peer : operation.active->ranks) {
    const Agreed said = record(peer, operation.number).terms.weights;
    if (said != Agreed::kAny) return said;
  }
  return Agreed::kAny;
}

void ExchangeState::publish(std::uint64_t number, Stage stage) noexcept {
  raise(control(rank_).progress, progress_of(number, stage));
  group_->ring();
  if (forwarder_) forwarder_->tell(number);
}

// What every record of this rank says, a refusal's too.
Record& ExchangeState::new_record(std::uint64_t number, const Terms& terms) noexcept {
  Record& mine = *new (&record(rank_, number)) Record{};
  mine.number = number;
  mine.terms = terms;
  mine.terms.num_active = static_cast<std::uint32_t>(active_->ranks.size());
  mine.terms.active = active_->digest;
  if (!active_->all()) {
    const std::string chosen = fmt::format("[{}]", fmt::join(active_->chosen, ", "));
    std::snprintf(mine.reason, sizeof mine.reason, "%s", chosen.c_str());
  }
  return mine;
}

bool ExchangeState::poll(Operation operation) noexcept {
  for (const InFlight& sent : in_flight_) {
    if (sent.number != operation.number) continue;
    if (sent.finished || !group_->usable()) return true;
    group_->progress();
    for (const int peer : sent.active->ranks) {
      // Acquire is left to the wait in the receive half.
      const std::uint64_t seen = control(peer).progress.load(std::memory_order_relaxed);
      if (seen < progress_of(operation.number, Stage::kDelivered)) return false;
    }
    return true;
  }
  return true;  // not in flight: the receive half returns its error at once
}

}  // namespace ferry::internal
