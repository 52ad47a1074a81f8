#include "collectives/calls.h"

#include <algorithm>
#include <cstdio>
#include <new>

#include "base/check.h"
#include "base/out_of_memory.h"
#include "collectives/copy.h"
#include "exchange/arguments/refusal.h"

namespace ferry::internal {

const char* call_name(CallKind kind) noexcept {
  switch (kind) {
    case CallKind::kRefused: return "collective";
    case CallKind::kAllToAll: return "all_to_all_v";
    case CallKind::kAllGather: return "all_gather_v";
    case CallKind::kReduceScatter: return "reduce_scatter_v";
    case CallKind::kAllReduce: return "all_reduce";
    case CallKind::kReduce: return "reduce";
    case CallKind::kBroadcast: return "broadcast";
    case CallKind::kGather: return "gather_v";
    case CallKind::kScatter: return "scatter_v";
    case CallKind::kBarrier: return "barrier";
  }
  return "unknown";
}

namespace {

std::vector<bool> awaited(const Survival& survival) {
  return survival.waited() ? *survival.waited() : std::vector<bool>();
}

}  // namespace

Calls::Calls(GroupState& group, std::shared_ptr<Segment> segment, const CollectivesLayout& layout,
             std::shared_ptr<Mirror> mirror, std::uint64_t cache_bytes)
    : group_(group),
      segment_(std::move(segment)),
      layout_(layout),
      mirror_(std::move(mirror)),
      allocations_(std::make_shared<Allocations>(segment_, layout_.shared(group.rank()),
                                                 layout_.shared_bytes())),
      members_(group.view().members),
      awaited_(awaited(group.survival())),
      rows_(members_.size()),
      crowded_(group.crowded(1)),
      cached_bytes_(cache_bytes / 4 / static_cast<std::size_t>(group.size())),
      time_(group.default_deadline()),
      view_(group.view().number) {}

void Calls::close() noexcept {
  if (!group_.usable()) return;
  // Before raise_step() wakes the ranks that sleep. Partner: await().
  raise(flag(rank(), number_ + 1).step, Step::kDeparted);
  try {
    raise_step(Step::kDeparted);
    if (mirror_) Mirror::keep_open(mirror_);
  } catch (const std::bad_alloc&) {  // ranks of other nodes are not told
    static_cast<void>(group_.fail(kOutOfMemory));
  }
}

void Calls::show(const void* data, std::size_t bytes, int readers) noexcept {
  if (bytes > cached_bytes_ * static_cast<std::size_t>(readers))
    record().in_place = allocations_->offset_of(data, bytes);
}

void Calls::put(std::byte* place, const std::byte* from, std::size_t bytes, int reader) const {
  const bool all = reader == kAll;
  if (record(rank()).in_place == 0 && (all || group_.here(reader)))
    copy(place, from, bytes, Stores::kCached);
  if (mirror_ && (all || !group_.here(reader)))
    mirror_->send_data(static_cast<std::size_t>(place - at(0)), {from, bytes}, reader);
}

Status Calls::begin(const CallTerms& terms, std::chrono::nanoseconds limit) {
  time_ = CallTime(limit);
  if (Status verdict = verdict_in(group_, view_, "collectives"); !verdict.ok()) return verdict;
  ++number_;
  group_.counters().begin_collective(static_cast<std::uint8_t>(terms.kind));
  CallRecord& mine = record();
  mine.number = number_;
  mine.terms = terms;
  mine.status = Code::kOk;
  mine.several_rounds = 0;
  mine.in_place = 0;
  mine.reason[0] = 0;
  return {};
}

void Calls::publish_counts(std::span<const std::int64_t> sent,
                           std::span<const std::int64_t> expected) {
  std::ranges::copy(sent, counts(layout_.sent_counts(rank(), number_)));
  std::ranges::copy(expected, counts(layout_.expected_counts(rank(), number_)));
}

// Raises the step, and then touches the flag of the next call, before that call needs it: writing a
// line that other ranks have read takes as long as reading one of their lines.
void Calls::raise_step(std::uint64_t step) {
  raise(flag(rank(), number_).step, step);  // partner: await()
  group_.ring();
  flag(rank(), number_ + 1).touch(step);
  if (!mirror_) return;
  step == Step::written(number_, 0) ? mirror_->send_call(number_) : mirror_->send_step(step);
}

Await Calls::awaiting(const char* phase, std::uint64_t step) noexcept {
  return {.operation = call_name(record().terms.kind),
          .number = number_,
          .phase = phase,
          .flags = &flag(0, step / Step::kPerCall).step,
          .stride_bytes = layout_.control_bytes(),
          .value = step,
          .time = &time_,
          .crowded = crowded_,
          .per_call = Step::kPerCall,
          .only = awaited_.empty() ? nullptr : &awaited_,
          .last_hop = mirror_ ? &mirror_->table().last_hop : nullptr};
}

// If the last call used both halves, ranks may still be reading it in the half that this call
// writes first.
Status Calls::await_free_half() {
  if (both_halves_ == 0 || both_halves_ + 1 != number_) return {};
  return await("reuse", Step::end(number_ - 1));
}

Status Calls::meet() {
  flag(rank(), number_).say(record());
  raise_step(Step::written(number_, 0));
  if (Status status = await("call", Step::written(number_, 0)); !status.ok()) return status;
  return examine();
}

Status Calls::end() {
  raise_step(Step::end(number_));
  const bool shown = (traits_ & CallTrait::kShows) != 0;
  if (!mirror_ && !shown) return {};
  Await others = awaiting("end", Step::end(number_));
  if (!shown) others.only = &mirror_->table().is_served;
  return leave(group_.wait(others));
}

Status Calls::leave(Status status) {
  if (!mirror_ || !status.group_usable()) return status;
  Status sent = group_.await_sent(awaiting("room", 0), mirror_->mates());
  return sent.ok() ? status : sent;
}

Status Calls::refuse(const Status& why) {
  CallRecord& mine = record();
  mine.status = why.code();
  std::snprintf(mine.reason, sizeof mine.reason, "%s", why.message().c_str());
  const Status met = meet();
  return met.group_usable() ? leave(why) : met;
}

Status Calls::refuse_rounds(std::int64_t rounds) {
  return refuse(refuse_with(rank(),
                            "the data take {} rounds through a window of {} bytes, need at most "
                            "{}: choose a larger window_bytes",
                            rounds, layout_.window_bytes(), Step::kMostRounds));
}

}  // namespace ferry::internal
