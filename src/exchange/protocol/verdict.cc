// Part of Protocol: the outcome that follows from the records of all ranks: whether they agree,
// which rank refused, which ranks disagree. Every rank reads the same records, and comes to the
// same outcome.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "exchange/protocol/protocol.h"

namespace ferry::internal {

namespace {

bool name_same_ranks(const Terms& a, const Terms& b) {
  return a.num_active == b.num_active && a.active == b.active;
}

bool agree(const Terms& a, const Terms& b) {
  const bool weights =
      a.weights == b.weights || a.weights == Agreed::kAny || b.weights == Agreed::kAny;
  // `cached` is not compared: a dispatch has a route if it is cached, and only then.
  return weights && a.kind == b.kind && a.row_type == b.row_type && a.hidden == b.hidden &&
         a.route == b.route && name_same_ranks(a, b);
}

}  // namespace

Agreed Protocol::agreed_weights(const Issued& issued) const noexcept {
  for (const int peer : issued.active->ranks) {
    const Agreed said = view_.record(peer, issued.number).terms.weights;
    if (said != Agreed::kAny) return said;
  }
  return Agreed::kAny;
}

Status Protocol::destroyed(const Issued& issued, const char* phase, int peer,
                           const std::string& text) {
  if (Status lost = group_.await_end(awaiting_flags(issued, phase, 0), peer); !lost.ok())
    return lost;
  return {Code::kMismatch,
          fmt::format("operation {}: rank {} destroyed this exchange{}", issued.number, peer, text),
          peer};
}

Status Protocol::examine(const Issued& issued, std::vector<std::uint64_t>* digests) {
  bool all_agree = true, skips = false;
  const std::uint64_t number = issued.number;
  const Agreed weights = agreed_weights(issued);
  const std::vector<int>& ranks = issued.active->ranks;
  const Terms& first = view_.record(ranks[0], number).terms;
  for (const int peer : ranks) {
    const Record& theirs = view_.record(peer, number);
    if (theirs.number != number) {
      const bool dispatch = issued.kind == OperationKind::kDispatch;
      return destroyed(issued, dispatch ? "counts" : "outputs", peer, "");
    }
    FERRY_CHECK(theirs.terms.kind, !=, OperationKind::kNone);
    // All ranks are compared with each other, not with this rank: a rank without rows agrees with
    // every rank, and would not see that two others disagree.
    const Agreed said = theirs.terms.weights;
    all_agree =
        all_agree && agree(theirs.terms, first) && (said == Agreed::kAny || said == weights);
    skips = skips || theirs.skips;
  }
  read_digests(issued, digests);
  for (const int peer : ranks) {
    const Record& theirs = view_.record(peer, number);
    if (theirs.status == Code::kOk) continue;
    return {Code::kPeerRejected,
            fmt::format("operation {}: rank {} refused its {} ({}): {}", number, peer,
                        kind_name(theirs.terms.kind), code_name(theirs.status), theirs.reason),
            peer};
  }
  if (skips && all_name_same_ranks(issued)) return judge_skips(issued);
  return all_agree ? Status{} : name_mismatch(issued);
}

bool Protocol::all_name_same_ranks(const Issued& issued) const noexcept {
  const std::vector<int>& ranks = issued.active->ranks;
  const Terms& first = view_.record(ranks[0], issued.number).terms;
  return std::ranges::all_of(ranks, [&](int peer) {
    const Record& theirs = view_.record(peer, issued.number);
    return theirs.number == issued.number && name_same_ranks(theirs.terms, first);
  });
}

void Protocol::read_digests(const Issued& issued, std::vector<std::uint64_t>* digests) const {
  if (digests == nullptr || !all_name_same_ranks(issued)) return;
  digests->clear();
  for (const int peer : issued.active->ranks)
    digests->push_back(view_.record(peer, issued.number).digest);
}

// The outcome if no rank refused, all name the same active ranks, and some skip.
Status Protocol::judge_skips(const Issued& issued) const {
  const auto record = [&](int peer) -> const Record& { return view_.record(peer, issued.number); };
  const std::vector<int>& ranks = issued.active->ranks;
  const auto skips = [&](int peer) { return record(peer).skips; };
  const auto calls = std::find_if_not(ranks.begin(), ranks.end(), skips);
  if (calls == ranks.end()) return {};
  const int other = *std::find_if(ranks.begin(), ranks.end(), skips);
  const bool mine = record(setup_.rank).skips;
  return {mine ? Code::kMismatch : Code::kPeerRejected,
          fmt::format("operation {}: rank {} skips this exchange, where rank {} calls {}: {}",
                      issued.number, other, *calls, kind_name(record(*calls).terms.kind),
                      record(other).reason),
          other};
}

bool Protocol::agrees_with_me(const Issued& issued, int peer) const noexcept {
  const Record& theirs = view_.record(peer, issued.number);
  return theirs.number == issued.number && theirs.status == Code::kOk &&
         agree(theirs.terms, view_.record(setup_.rank, issued.number).terms);
}

// The culprit is the first rank outside the largest set of ranks that agree. A rank that agrees
// with all others, such as one without tokens, is not used as the reference.
Status Protocol::name_mismatch(const Issued& issued) const {
  const std::uint64_t number = issued.number;
  const std::vector<int>& ranks = issued.active->ranks;
  int reference = ranks[0];
  std::int64_t most = 0;
  const auto agrees_with = [&](int rank) {
    return [this, number, rank](int peer) {
      return agree(view_.record(peer, number).terms, view_.record(rank, number).terms);
    };
  };
  for (const int rank : ranks) {
    const std::int64_t agreeing = std::count_if(ranks.begin(), ranks.end(), agrees_with(rank));
    if (agreeing > most && agreeing < std::ssize(ranks)) most = agreeing, reference = rank;
  }
  const auto culprit = std::find_if_not(ranks.begin(), ranks.end(), agrees_with(reference));
  const int other = culprit == ranks.end() ? reference : *culprit;
  return {Code::kMismatch,
          fmt::format("operation {}: rank {} called {}, rank {} called {}", number, other,
                      describe(other, number), reference, describe(reference, number)),
          other};
}

// The call of `rank` as text. If not all ranks are active, the record of a call lists the active
// ones (new_record).
std::string Protocol::describe(int rank, std::uint64_t number) const {
  const Record& theirs = view_.record(rank, number);
  const Terms& terms = theirs.terms;
  const char* weights = terms.weights == Agreed::kYes  ? "with"
                        : terms.weights == Agreed::kNo ? "without"
                                                       : "any";
  const std::string_view active = theirs.reason;
  return fmt::format("{}{} of {} {} {} row weights, handle of dispatch {}{}{}",
                     terms.cached ? "cached " : "", kind_name(terms.kind), terms.hidden,
                     data_type_name(terms.row_type), weights, terms.route,
                     active.empty() ? "" : ", ", active);
}

Status Protocol::refuse(const Issued& issued, const Status& why,
                        std::vector<std::uint64_t>* digests) {
  if (!why.group_usable()) return why;  // nobody waits for this rank any more
  FERRY_CHECK(why.ok(), ==, false);
  const bool alone = !issued.active->contains_me() || !issued.set_known;
  if (alone) refused_alone_ = issued.number;
  // If this rank named an invalid set, other ranks may wait for this rank, and then read the
  // refusal.
  if (!alone || may_write_record(issued)) {
    Record& mine = new_record(issued.number, {.kind = issued.kind});
    mine.status = why.code();
    std::snprintf(mine.reason, sizeof mine.reason, "%s", why.message().c_str());
    publish(issued.number, Stage::kDelivered);
  }
  if (alone) {
    conclude(issued);
    return leave(issued, why);
  }
  if (Status status = await_records(issued); !status.ok()) {
    return {status.code(),
            fmt::format("{}; this rank had refused: {}", status.message(), why.message()),
            status.culprit()};
  }
  read_digests(issued, digests);
  conclude(issued);
  return leave(issued, why);
}

// The record is that of a dispatch without tokens, but it is published at the last stage. So other
// ranks find it whether they call a dispatch or a combine.
Status Protocol::skip(const Issued& issued, std::string_view why, const Digests& digests) {
  Status status;
  if (issued.active->contains_me()) {
    Record& mine = new_record(issued.number, {.kind = issued.kind}, digests.mine);
    mine.skips = true;
    mine.reason[why.copy(mine.reason, sizeof mine.reason - 1)] = '\0';
    publish(issued.number, Stage::kDelivered);
    status = await_records(issued);
    if (status.ok()) status = examine(issued, digests.all);
  }
  return fail(issued, status);
}

// Waits for the records of all ranks. A combine publishes its record with its outputs, at the last
// stage.
Status Protocol::await_records(const Issued& issued) {
  const bool dispatch = issued.kind == OperationKind::kDispatch;
  return await(issued, dispatch ? "counts" : "outputs",
               dispatch ? Stage::kAnnounced : Stage::kDelivered);
}

// A rank that refuses alone writes its record only if no slow rank can still read the older record
// in its place. If other ranks may wait for this rank, this rank first waits a short time for slow
// ranks.
bool Protocol::may_write_record(const Issued& issued) {
  const std::uint64_t ring = num_records();
  if (min_read_through() + ring >= issued.number) return true;
  if (!issued.active->contains_me()) return false;
  CallTime time(longest_wait_for_absent());
  const std::vector<bool> nobody(group_.size());
  Await reads = awaiting_reads(issued, issued.number - ring);
  reads.time = &time;
  reads.needed = &nobody;
  return group_.wait(reads).ok();
}

Status Protocol::fail(const Issued& issued, const Status& why) {
  if (why.group_usable()) conclude(issued);
  return leave(issued, why);
}

}  // namespace ferry::internal
