#include "collectives/calls.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/check.h"
#include "topology/caches.h"

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

Calls::Calls(GroupState& group, std::shared_ptr<Segment> segment, const CollectivesLayout& layout)
    : group_(group),
      segment_(std::move(segment)),
      layout_(layout),
      crowded_(group.crowded(1)),
      cached_bytes_(last_level_cache_bytes() / static_cast<std::size_t>(group.size())),
      time_(group.default_deadline()) {}

void Calls::close() noexcept {
  if (!group_.usable()) return;
  raise_step(Step::kDeparted);
}

Status Calls::begin(const CallTerms& terms, std::chrono::nanoseconds limit) {
  time_ = CallTime(limit);
  if (Status verdict = group_.verdict(); !verdict.ok()) return verdict;
  ++number_;
  CallRecord& mine = record();
  mine.number = number_;
  mine.terms = terms;
  mine.status = Code::kOk;
  mine.sends = mine.expects = 0;
  mine.reason[0] = 0;
  return {};
}

void Calls::publish_counts(std::span<const std::int64_t> sent,
                           std::span<const std::int64_t> expected) {
  std::memcpy(at(layout_.sent_counts(rank(), number_)), sent.data(), sent.size_bytes());
  std::memcpy(at(layout_.expected_counts(rank(), number_)), expected.data(), expected.size_bytes());
}

void Calls::raise_step(std::uint64_t step) noexcept {
  raise(flag(rank()).step, step);  // partner: await()
  group_.ring();
}

Await Calls::awaiting(const char* phase, std::uint64_t step) noexcept {
  return {.operation = call_name(record().terms.kind),
          .number = number_,
          .phase = phase,
          .flags = &flag(0).step,
          .stride_bytes = layout_.control_bytes(),
          .value = step,
          .time = &time_,
          .crowded = crowded_,
          .per_call = Step::kPerCall};
}

// The last call may still be read from the half that this call writes first, when it used both.
Status Calls::await_free_half() {
  if (both_halves_ == 0 || both_halves_ + 1 != number_) return {};
  return await("reuse", Step::end(number_ - 1));
}

Status Calls::meet() {
  raise_step(Step::written(number_, 0));
  if (Status status = await("call", Step::written(number_, 0)); !status.ok()) return status;
  return examine();
}

// Others go on waiting for this rank otherwise; a broken group has ended their waits.
Status Calls::end(Status status) {
  if (status.group_usable()) raise_step(Step::end(number_));
  return status;
}

Status Calls::refuse(const Status& why) {
  CallRecord& mine = record();
  mine.status = why.code();
  std::snprintf(mine.reason, sizeof mine.reason, "%s", why.message().c_str());
  const Status met = meet();
  if (!met.group_usable()) return met;
  return end(why);
}

}  // namespace ferry::internal
