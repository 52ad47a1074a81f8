#include "exchange/protocol/protocol.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>

#include "base/check.h"

namespace ferry::internal {

namespace {

// The longest wait for ranks that may make no more calls. It takes at most 1/kAbsentPart of the
// remaining deadline, because the other active ranks wait for this rank meanwhile.
constexpr std::chrono::seconds kAbsentWait{1};
constexpr int kAbsentPart = 2;

}  // namespace

const char* kind_name(OperationKind kind) noexcept {
  return kind == OperationKind::kDispatch  ? "dispatch"
         : kind == OperationKind::kCombine ? "combine"
                                           : "nothing";
}

Protocol::Protocol(GroupState& group, const Setup& setup, const WindowView& view, const Ways& ways)
    : group_(group),
      setup_(setup),
      view_(view),
      ways_(ways),
      crowded_(group.crowded(setup.config.workers)),
      call_(group.default_deadline()),
      of_view_{setup.everybody},
      active_(setup.everybody),
      last_{setup.everybody} {}

void Protocol::close() noexcept {
  ControlFlags& mine = view_.control(setup_.rank);
  const auto raise_flags = [segment = view_.segment, &mine] {
    raise(mine.read_through, kDeparted);
    raise(mine.progress, kDeparted);
  };
  // If the group is broken, this rank may not have sent its rows: a rank that waits for them must
  // not go on as if they were there.
  if (!group_.usable()) {
    return group_.survival().depart_in_next_view([raise_flags, ways = ways_, last = issued_] {
      raise_flags();
      ways.begin_view(last);
      ways.send_departure();
    });
  }
  raise_flags();
  group_.ring();
  ways_.send_departure();
}

Status Protocol::begin(std::chrono::nanoseconds deadline) {
  call_ = CallTime(deadline.count() > 0 ? deadline : group_.default_deadline());
  if (Status verdict = group_.verdict(); !verdict.ok()) return verdict;
  if (!of_view_.unfit.ok()) return of_view_.unfit;
  ++issued_;
  const std::uint64_t depth = setup_.config.depth;
  return issued_ > depth ? settle(issued_ - depth) : Status{};
}

void Protocol::begin_receive(Operation operation) noexcept {
  for (const auto& sent : in_flight_) {
    if (sent->number() == operation.number) call_ = CallTime(sent->issued().deadline);
  }
}

Status Protocol::choose_active(std::span<const int> named) {
  const std::span<const int> chosen = named.empty() ? of_view_.ranks->chosen : named;
  const auto& last = active_->chosen;
  set_known_ = true;
  if (!std::equal(chosen.begin(), chosen.end(), last.begin(), last.end())) {
    try {
      active_ = find_set(chosen);
    } catch (const Error& error) {
      const Status refusal(error.code(), error.what(), setup_.rank);
      Status status = refuse_to_everybody();
      return status.ok() ? refusal : status;
    }
  }
  // When the set changes, every rank finishes its own operations, even a rank that the new set
  // leaves out: other ranks wait for that.
  const bool changed = set_changes();
  if (changed) {
    if (Status status = settle(last_.number); !status.ok()) return status;
  }
  if (!active_->contains_me()) return {};
  if (changed) {
    // The messages go by the table of the new set: a rank that passed messages on in the last set
    // may be left out now.
    ForwardingTable next = ways_.send_set(*active_);
    Status finished = let_last_set_finish(ways_.none() ? nullptr : &next.last_hop);
    if (!finished.ok()) return finished;
    ways_.use(std::move(next));
    // Relaxed: the next raise of progress publishes it. Partner: lapped().
    view_.control(setup_.rank).set_since.store(issued_, std::memory_order_relaxed);
  }
  FERRY_CHECK(last_.number, <, issued_);
  last_.set = active_;
  last_.number = issued_;
  return await_readers_of_refusals();
}

// Throws Error if `chosen` cannot be the ranks of an operation in this view.
std::shared_ptr<const ActiveSet> Protocol::find_set(std::span<const int> chosen) const {
  const auto& all = of_view_.ranks->chosen;
  if (std::equal(chosen.begin(), chosen.end(), all.begin(), all.end())) return of_view_.ranks;
  std::shared_ptr<const ActiveSet> set = setup_.active_set(chosen);
  const auto lost =
      std::ranges::find_if(set->ranks, [&](int rank) { return !of_view_.ranks->waited[rank]; });
  if (lost == set->ranks.end()) return set;
  const View& view = group_.view();
  throw Error(Code::kInvalidArgument,
              fmt::format("active_ranks names rank {}, which view {} lacks; its ranks are {}",
                          *lost, view.number, fmt::join(view.members, ", ")));
}

// Whether the operation before this one had other ranks, or took place without this rank.
bool Protocol::set_changes() const noexcept {
  return active_ != last_.set || last_.number + 1 < issued_;
}

// The caller named ranks that are no valid set. Any rank of the view may wait for this rank, so the
// refusal is for all of them, and this rank waits for none.
Status Protocol::refuse_to_everybody() {
  set_known_ = false;
  active_ = of_view_.ranks;
  if (set_changes()) {
    if (Status status = settle(last_.number); !status.ok()) return status;
    ways_.use(ways_.send_set(*active_));
  }
  last_.set = active_;
  last_.number = issued_;
  return {};
}

// The records of operation n replace those of operation n - num_records(). In an operation in which
// this rank waits for the others, it sees that they have read the older records. In an operation
// that it refused alone it does not wait, so in the operations that follow it waits for the readers
// of the record that it is going to replace.
Status Protocol::await_readers_of_refusals() {
  const std::uint64_t depth = setup_.config.depth;
  const bool may_be_ahead = refused_alone_ > 0 && issued_ <= refused_alone_ + depth;
  if (!may_be_ahead || issued_ <= num_records()) return {};
  return await_read_through(issue(OperationKind::kNone), issued_ - num_records());
}

Issued Protocol::issue(OperationKind kind) const {
  return {.number = issued_,
          .kind = kind,
          .active = active_,
          .deadline = call_.limit(),
          .set_known = set_known_};
}

Status Protocol::check_depth(OperationKind kind) const {
  if (in_flight_.size() < static_cast<std::size_t>(setup_.config.depth)) return {};
  return {Code::kInvalidArgument,
          fmt::format("{}: {} operations are in flight, the depth is {}", kind_name(kind),
                      in_flight_.size(), setup_.config.depth),
          setup_.rank};
}

Record& Protocol::new_record(std::uint64_t number, const Terms& terms, std::uint64_t digest) {
  FERRY_CHECK(number, ==, issued_);
  FERRY_CHECK(is_announced(number), ==, false);
  Record& mine = *new (&view_.record(setup_.rank, number)) Record{};
  mine.number = number;
  mine.terms = terms;
  mine.terms.num_active = static_cast<std::uint32_t>(active_->ranks.size());
  mine.terms.active = active_->digest;
  mine.digest = digest;
  if (!active_->all()) {
    fmt::format("active ranks [{}]", fmt::join(active_->chosen, ", "))
        .copy(mine.reason, sizeof mine.reason - 1);
  }
  return mine;
}

bool Protocol::is_announced(std::uint64_t number) const noexcept {
  // Relaxed: this rank is the only writer.
  return view_.control(setup_.rank).progress.load(std::memory_order_relaxed) >=
         progress_of(number, Stage::kAnnounced);
}

void Protocol::publish(std::uint64_t number, Stage stage) {
  // Relaxed: this rank is the only writer.
  const std::uint64_t before = view_.control(setup_.rank).progress.load(std::memory_order_relaxed);
  FERRY_CHECK(before, <, progress_of(number, stage));
  raise(view_.control(setup_.rank).progress, progress_of(number, stage));
  group_.ring();
  ways_.send_progress(number, stage);
}

Await Protocol::awaiting(const Issued& issued, const char* phase, std::uint64_t value) noexcept {
  return {.operation = kind_name(issued.kind),
          .number = issued.number,
          .phase = phase,
          .flags = nullptr,
          .stride_bytes = sizeof(std::atomic<std::uint64_t>),
          .value = value,
          .time = &call_,
          .crowded = crowded_,
          .only = &issued.active->waited};
}

// A wait for flags of the active ranks. For a rank of another node, a rank of this node writes them
// into the segment of this node.
Await Protocol::awaiting_flags(const Issued& issued, const char* phase,
                               std::uint64_t value) noexcept {
  Await await = awaiting(issued, phase, value);
  await.stride_bytes = setup_.layout.control_bytes();
  await.last_hop = ways_.last_hop();
  return await;
}

Status Protocol::await(const Issued& issued, const char* phase, Stage stage,
                       const AwaitOptions& options) {
  Await await = awaiting_flags(issued, phase, progress_of(issued.number, stage));
  await.flags = &view_.control(0).progress;
  await.per_call = progress_of(1, Stage::kAnnounced);
  await.wait_ns = options.wait_ns;
  await.meanwhile = options.meanwhile;
  if (options.only) await.only = options.only;
  Status status = group_.wait(await);
  const bool both_ways = stage == Stage::kDelivered && ways_.both(*issued.active);
  return status.ok() && both_ways ? await_second_way(await) : status;
}

// A rank of another node has delivered its rows when the flags of both ways say so.
Status Protocol::await_second_way(Await await) {
  std::vector<bool> elsewhere(group_.size());
  for (int peer = 0; peer < group_.size(); ++peer) elsewhere[peer] = !view_.here(peer);
  await.flags = &view_.control(0).second_way;
  await.last_hop = ways_.last_hop(1);
  await.only = &elsewhere;
  return group_.wait(await);
}

// A wait until all ranks of the operation have finished all operations up to `number`.
Await Protocol::awaiting_reads(const Issued& issued, std::uint64_t number) noexcept {
  Await await = awaiting_flags(issued, "reuse", number);
  await.flags = &view_.control(0).read_through;
  return await;
}

Status Protocol::await_read_through(const Issued& issued, std::uint64_t number) {
  return group_.wait(awaiting_reads(issued, number));
}

// Waits at a change of the active ranks until the ranks of the last set have finished its last
// operation. There are two reasons. First, a rank that is only in the last set may still read this
// rank's records and rows, and later waits do not include that rank. Second, between nodes flags of
// the new set may take another path than rows of the last set, and overtake them. Ranks in both
// sets have the whole deadline. A rank that is left out has only a short time, since it may be left
// out because it hangs; when it goes on, it finds that it was lapped (lapped()).
Status Protocol::let_last_set_finish(const std::vector<int>* last_hop) {
  const Issued last{.number = issued_, .active = last_.set};
  std::vector<bool> in_both = last_.set->waited;
  for (std::size_t rank = 0; rank < in_both.size(); ++rank)
    in_both[rank] = in_both[rank] && active_->waited[rank];
  Await both = awaiting_reads(last, last_.number);
  both.operation = "operation";
  both.last_hop = last_hop;
  both.only = &in_both;
  if (Status status = group_.wait(both); !status.ok()) return status;
  CallTime time(longest_wait_for_absent());
  Await everybody = awaiting_reads(last, last_.number);
  everybody.time = &time;
  everybody.needed = &active_->waited;
  Status finished = group_.wait(everybody);
  if (finished.code() != Code::kTimeout) return finished;
  group_.log(LogLevel::kWarn,
             fmt::format("exchange {}: rank {} did not say that it finished operation "
                         "{}, and is left behind",
                         setup_.id, finished.culprit(), last_.number));
  return {};
}

std::chrono::nanoseconds Protocol::longest_wait_for_absent() const noexcept {
  return std::min<std::chrono::nanoseconds>(kAbsentWait, call_.remaining() / kAbsentPart);
}

std::uint64_t Protocol::min_read_through() const noexcept {
  std::uint64_t least = read_through_;
  // Ranks of earlier sets have finished reading this rank's rows, or were left behind
  // (let_last_set_finish).
  for (const int peer : last_.set->ranks) {
    // Acquire: their reads come before this rank's writes. Partner: conclude().
    if (peer != setup_.rank)
      least = std::min(least, view_.control(peer).read_through.load(std::memory_order_acquire));
  }
  return least;
}

// True if another rank of the operation went on to a later operation with other ranks. A rank does
// so only when this rank has finished the operation, or when its wait for this rank has timed out
// (let_last_set_finish).
bool Protocol::lapped(const Issued& issued) const noexcept {
  return std::ranges::any_of(issued.active->ranks, [&](int peer) {
    // Acquire: no order of a load, however strong, puts it behind this rank's earlier reads of
    // rows. Partner: choose_active().
    return view_.control(peer).set_since.load(std::memory_order_acquire) > issued.number;
  });
}

}  // namespace ferry::internal
