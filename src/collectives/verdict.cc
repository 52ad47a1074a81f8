// The outcome that follows from the flags of all ranks, and from their records where it is an
// error. It is equal on all ranks, except that a rank that refuses returns its own reason.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/out_of_memory.h"
#include "collectives/calls.h"

namespace ferry::internal {

namespace {

bool has_root(CallKind kind) noexcept {
  return kind == CallKind::kReduce || kind == CallKind::kBroadcast || kind == CallKind::kGather ||
         kind == CallKind::kScatter;
}

bool has_op(CallKind kind) noexcept {
  return kind == CallKind::kReduceScatter || kind == CallKind::kAllReduce ||
         kind == CallKind::kReduce;
}

std::string describe(const CallTerms& terms) {
  if (terms.kind == CallKind::kBarrier) return "barrier";
  std::string text = fmt::format("{} of {}", call_name(terms.kind), data_type_name(terms.dtype));
  if (terms.kind != CallKind::kAllToAll) text += fmt::format(", {} elements", terms.count);
  if (has_op(terms.kind)) text += fmt::format(", op {}", reduce_op_name(terms.op));
  if (has_root(terms.kind)) text += fmt::format(", root {}", terms.root);
  return text;
}

}  // namespace

// Rank r replaces its record of call m when r begins call m + kRecords, and r does so only after
// this rank has begun call m + kRecords - 1. So the records that are read here are whole.
std::vector<std::string> Calls::latest(int rank) const {
  constexpr std::uint64_t kLatest = 10;
  static_assert(kLatest + 2 <= CollectivesLayout::kRecords);
  // Acquire: the records were written before. Partner: raise_step().
  const std::uint64_t step = std::max(flag(rank, 0).step.load(std::memory_order_acquire),
                                      flag(rank, 1).step.load(std::memory_order_acquire));
  const std::uint64_t last = step == Step::kDeparted ? number_ : step / Step::kPerCall;
  std::vector<std::string> calls;
  for (std::uint64_t number = last < kLatest ? 1 : last - kLatest + 1; number <= last; ++number) {
    const CallRecord& call = record(rank, number);
    if (call.number != number) continue;
    calls.push_back(fmt::format("{}: {}{}{}", number, describe(call.terms),
                                call.in_place == 0 ? "" : ", read in place",
                                call.status == Code::kOk ? "" : ", refused"));
  }
  return calls;
}

Status Calls::examine() {
  const CallFlag& first = flag(members_[0], number_);
  bool agree = true;
  std::uint64_t counts = 0;
  traits_ = 0;
  for (const int peer : members_) {
    const CallFlag& theirs = flag(peer, number_);
    // Acquire: partner is raise_step(). A rank may have finished this call before it departed.
    if (theirs.step.load(std::memory_order_acquire) == Step::kDeparted &&
        record(peer).number != number_)
      return destroyed(peer);
    agree = agree && theirs.says_as(first);
    counts += theirs.size;
    traits_ |= theirs.traits;
  }
  const bool refused = (traits_ & CallTrait::kRefuses) != 0;
  agree = agree && (first.kind != CallKind::kAllToAll || counts == 0);
  if (agree && !refused) return {};
  try {
    return refused ? name_refusal() : name_difference();
  } catch (const std::bad_alloc&) {
    return {refused ? Code::kPeerRejected : Code::kMismatch, kOutOfMemory};
  }
}

// Names the first rank that refused, on all ranks.
Status Calls::name_refusal() const {
  const auto peer = *std::ranges::find_if(
      members_, [this](int rank) { return record(rank).status != Code::kOk; });
  const CallRecord& theirs = record(peer);
  return {Code::kPeerRejected,
          fmt::format("{} {}: rank {} refused its {} ({}): {}",
                      call_name(record(rank()).terms.kind), number_, peer,
                      call_name(theirs.terms.kind), code_name(theirs.status), theirs.reason),
          peer};
}

Status Calls::destroyed(int peer) {
  if (Status lost = group_.await_end(awaiting("call", 0), peer); !lost.ok()) return lost;
  return {Code::kMismatch,
          fmt::format("{} {}: rank {} destroyed its Collectives", call_name(record().terms.kind),
                      number_, peer),
          peer};
}

// ", counts[2] is 7 and not 5" for the first count that differs from that of the first member.
std::string Calls::name_counts(int rank) const {
  const std::span<const std::int64_t> first = sent_counts(members_[0]);
  for (int i = 0; i < size(); ++i) {
    if (sent_counts(rank)[i] != first[i])
      return fmt::format(", counts[{}] is {} and not {}", i, sent_counts(rank)[i], first[i]);
  }
  return "";
}

// Names the first member whose terms differ from those of members_[0], the same on all ranks.
Status Calls::name_difference() const {
  const CallTerms& first = record(members_[0]).terms;
  for (const int peer : members_) {
    const CallTerms& terms = record(peer).terms;
    if (terms == first) continue;
    const bool counts = num_count_lists(terms.kind) == 1 && terms.kind == first.kind;
    return {Code::kMismatch,
            fmt::format("call {}: rank {} calls {}; rank {} calls {}{}", number_, members_[0],
                        describe(first), peer, describe(terms), counts ? name_counts(peer) : ""),
            peer};
  }
  return name_pair();
}

// Names the first pair whose counts differ, on all ranks.
Status Calls::name_pair() const {
  for (const int source : members_) {
    for (const int destination : members_) {
      const std::int64_t sent = sent_counts(source)[destination];
      const std::int64_t expected = counts(layout_.expected_counts(destination, number_))[source];
      if (sent == expected) continue;
      return {Code::kMismatch,
              fmt::format("all_to_all_v {}: rank {} sends {} elements of {} to rank {}, which "
                          "expects {}",
                          number_, source, sent, data_type_name(record(rank()).terms.dtype),
                          destination, expected),
              source};
    }
  }
  return group_.fail(fmt::format("all_to_all_v {}: the digests of counts differ", number_));
}

}  // namespace ferry::internal
