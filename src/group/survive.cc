// How a group goes on without ranks that are lost (docs/protocol.md, "Views").
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "group/agreement_between_nodes.h"
#include "group/state.h"
#include "group/wait.h"

namespace ferry::internal {

namespace {

// Between nodes, the time between two looks at the messages.
constexpr int kNapUs = 200;

}  // namespace

// How one rank goes from a view to the next.
class ViewChange {
 public:
  // `newcomers`: the ranks that the members admit to the next view, between nodes.
  explicit ViewChange(GroupState& group, std::vector<int> newcomers = {})
      : group_(group),
        view_(group.survival_.view()),
        next_(view_.number + 1),
        newcomers_(std::move(newcomers)) {}

  Status run(std::chrono::nanoseconds limit) noexcept;
  // Comes to the next view, and begins it when its ranks are known.
  Status come_and_begin(CallTime& time) noexcept;
  // Ends the calls of all ranks in the view, because of `why` unless a rank is lost.
  void end(const Status& why) noexcept;
  // Why the view ends, if this rank sees that a rank died, left or lost its link; else ok.
  static Status find_loss(const GroupState& group) noexcept;
  // Why the ranks of the view cannot meet; ok: this rank sees no reason. A rank that could not
  // meet the others may have ended because of that. So the reason that it wrote down is preferred
  // to `loss`, the death or departure that the caller saw before.
  static Status find_absence(const GroupState& group, Status loss) noexcept;
  // This rank could not meet the others of the view, and none of them waits for it.
  static void tell_absence(GroupState& group, const Error& why) noexcept;

 private:
  // Takes this rank's seat in the next view.
  Status come() noexcept;
  // Waits until the ranks of the next view are known.
  Status await(CallTime& time);
  // Whether they are, once the seats of the ranks of this node are decided.
  bool are_known() const noexcept;
  Status late(const std::vector<int>& undecided, const CallTime& time) const;
  void sleep(const std::vector<int>& undecided) noexcept;
  // Call when they are known.
  Status begin();
  std::vector<int> decide_seats();
  Status outside() const;

  GroupState& group_;
  const View& view_;
  const std::uint64_t next_;
  const std::vector<int> newcomers_;
  std::optional<NodesAgreement> nodes_;  // of several nodes
};

// Sequentially consistent on both words: of a thread that makes an object and one that calls
// survive(), at least one sees the other.
Making::Making(std::shared_ptr<GroupState> group) : group_(std::move(group)) {
  if (!group_) return;
  Survival& survival = group_->survival();
  survival.num_calls().fetch_add(1, std::memory_order_seq_cst);
  if (!survival.surviving().load(std::memory_order_seq_cst)) return;
  survival.num_calls().fetch_sub(1, std::memory_order_release);
  throw Error(Code::kInvalidArgument,
              fmt::format("another thread of rank {} is in survive(); make objects after it",
                          group_->rank()),
              group_->rank());
}

Making::~Making() {
  if (group_) group_->survival().num_calls().fetch_sub(1, std::memory_order_release);
}

Status GroupState::survive(std::chrono::nanoseconds limit) noexcept {
  std::atomic<bool>& surviving = survival_.surviving();
  // Sequentially consistent: partner: Making.
  if (surviving.exchange(true, std::memory_order_seq_cst)) {
    return {Code::kInvalidArgument,
            fmt::format("survive: another thread of rank {} is in survive()", rank_), rank_};
  }
  Status status = ViewChange(*this).run(limit.count() > 0 ? limit : options_.deadline);
  surviving.store(false, std::memory_order_release);
  if (status.ok()) return status;
  return {status.code(), text_of([&] { return "survive: " + status.message(); }), status.culprit()};
}

Status ViewChange::run(std::chrono::nanoseconds limit) noexcept {
  CallTime time(limit);
  // Acquire: partner: leave().
  if (group_.verdict_.closed.load(std::memory_order_acquire)) return group_.verdict();
  if (Status status = next_view_held(group_); !status.ok()) return status;
  end({Code::kBroken, fmt::format("rank {} called survive()", group_.rank_), group_.rank_});
  return come_and_begin(time);
}

Status ViewChange::come_and_begin(CallTime& time) noexcept {
  if (Status status = come(); !status.ok()) return status;
  try {
    if (!group_.one_node()) nodes_.emplace(group_, next_, newcomers_);
    if (Status status = await(time); !status.ok()) return status;
    return begin();
  } catch (const std::exception& failure) {
    return {Code::kSystem, failure.what(), group_.rank_};
  }
}

Status NextView::settle(GroupState& group, const Admission& admission, const Status& failure,
                        std::chrono::nanoseconds limit) noexcept {
  CallTime time(limit);
  ViewChange change(group, admission.newcomers);
  if (!failure.ok()) change.end(failure);
  return change.come_and_begin(time);
}

Status next_view_held(GroupState& group) {
  const int rank = group.rank();
  Survival& survival = group.survival();
  // Sequentially consistent: partner: Making. This comes first, because a call that is over, and
  // not seen here, may have made one of the objects that are looked for next.
  if (survival.num_calls().load(std::memory_order_seq_cst) > 0) {
    return {Code::kInvalidArgument,
            fmt::format("another thread of rank {} waits in a call of this group, or makes an "
                        "object of it; let its calls end first",
                        rank),
            rank};
  }
  if (const int held = survival.held(); held > 0) {
    return {Code::kInvalidArgument,
            fmt::format("{} exchanges of CUDA ranks cannot go on; destroy them first", held), rank};
  }
  return {};
}

Status ViewChange::find_loss(const GroupState& group) noexcept {
  if (Status death = group.death_here(); !death.ok()) return death;
  for (const int rank : group.view().members) {
    if (group.flags_->has_left(rank))
      return {Code::kPeerLost, fmt::format("{} has left the group", group.name_of(rank)), rank};
    if (!group.here(rank) && ViewMessages::unreachable(group, rank)) {
      return {Code::kPeerLost, group.name_of(rank) + " of another node is lost", rank};
    }
  }
  return {};
}

void NextView::look_for_loss(GroupState& group) {
  group.progress();
  require_ok(group.verdict());
  require_ok(ViewChange::find_loss(group));
}

Status NextView::end_by_lost_link(GroupState& group) {
  const BetweenNodes& nodes = group.nodes_;
  for (const int rank : group.view().members) {
    const bool lost = nodes.lost[rank].load(std::memory_order_acquire);      // partner: lost()
    const bool left = nodes.farewell[rank].load(std::memory_order_acquire);  // read_abort()
    if (!lost || left) continue;
    const std::string why = group.name_of(rank) + " of another node is lost; ";
    return group.break_group(Code::kPeerLost, rank,
                             why + group.view_is_over(Code::kPeerLost, rank));
  }
  return {};
}

std::optional<Error> NextView::loss_in(GroupState& group) {
  try {
    look_for_loss(group);
    return std::nullopt;
  } catch (const Error& loss) {
    return loss;
  }
}

bool NextView::has_come(const GroupState& group, std::uint64_t view) noexcept {
  const std::uint64_t seat =
      group.flags_->slot(group.rank_).seat.load(std::memory_order_relaxed);  // its own
  return Seat::decided(seat, view);
}

Status ViewChange::find_absence(const GroupState& group, Status loss) noexcept {
  for (const int rank : group.view().members) {
    const std::uint64_t word = group.flags_->unmet(rank);
    if (word == AbortWord::kNone) continue;
    const Code code = AbortWord::code(word);
    const int culprit = AbortWord::culprit(word) < 0 ? rank : AbortWord::culprit(word);
    if (culprit == loss.culprit()) return loss;
    return {code,
            fmt::format("{} could not meet the others in view {} ({}{}), and so nothing is made in "
                        "this view",
                        group.name_of(rank), group.view().number, code_name(code),
                        culprit == rank ? "" : fmt::format(" because of rank {}", culprit)),
            culprit};
  }
  return loss;
}

void ViewChange::tell_absence(GroupState& group, const Error& why) noexcept {
  group.flags_->set_unmet(group.rank_, AbortWord::make(why.code(), why.culprit()));
}

Error absence(GroupState& group, const Error& why) {
  // A rank that has left is not the cause: it may have left because of a rank of another node.
  const Status seen = ViewChange::find_absence(group, group.death_here());
  const bool same = seen.ok() || seen.culprit() == why.culprit();
  Error cause = same ? why : Error(seen.code(), seen.message(), seen.culprit());
  ViewChange::tell_absence(group, cause);
  return cause;
}

// While the ranks meet, no connection shows the loss of a rank that has not come, so `look` does.
Rendezvous& meeting_of(GroupState& group, const Deadline& by) {
  const View& view = group.view();
  if (group.survival().have_met()) return group.rendezvous();
  auto& [id, place, failure] = group.survival().meeting();
  if (failure) throw *failure;
  if (place) return *place;
  const std::function<void()> look = [&] {
    by.look([](const Error& why) { throw why; });
    require_ok(ViewChange::find_absence(group, ViewChange::find_loss(group)));
  };
  const Deadline looking = by.looking(look);
  const MeetingPlace where{.name = fmt::format("{:016x} {}", id, view.number),
                           .pass_on = [&](const std::string& mine) {
                             return ViewMessages::pass_on_meeting(group, mine, looking);
                           }};
  try {
    place = group.rendezvous().among(view.members, where, looking);
  } catch (const Error& error) {
    failure = error;
    ViewChange::tell_absence(group, error);
    throw;
  }
  return *place;
}

void ViewChange::end(const Status& otherwise) noexcept {
  if (!group_.verdict().ok()) return;
  Status why = find_absence(group_, find_loss(group_));
  if (why.code() != Code::kPeerLost) why = otherwise;
  static_cast<void>(
      group_.break_group(why.code(), why.culprit(),
                         why.message() + "; " + group_.view_is_over(why.code(), why.culprit())));
}

Status ViewChange::come() noexcept {
  NextView::prepare(group_, next_);
  if (!group_.one_node()) NodesAgreement::show_links(group_, next_);
  if (group_.flags_->decide_seat(group_.rank_, next_, Seat::in(next_)) == Seat::outside(next_))
    return outside();
  group_.ring();
  return {};
}

Status ViewChange::outside() const {
  return {Code::kClosed,
          fmt::format("view {} began without rank {}, which the other ranks took for "
                      "lost; it is outside of the group",
                      next_, group_.rank_),
          group_.rank_};
}

// Decides that the ranks of this node that died or left are outside of the view. Returns those
// without a seat.
std::vector<int> ViewChange::decide_seats() {
  std::vector<int> undecided;
  for (const int rank : group_.node_ranks_) {
    const GroupSlot& slot = group_.flags_->slot(rank);
    // Acquire: partner: decide_seat().
    if (Seat::decided(slot.seat.load(std::memory_order_acquire), next_)) continue;
    if (group_.flags_->has_left(rank) || !group_.rendezvous_->alive(rank)) {
      group_.flags_->decide_seat(rank, next_, Seat::outside(next_));
    } else {
      undecided.push_back(rank);
    }
  }
  return undecided;
}

bool ViewChange::are_known() const noexcept { return !nodes_ || nodes_->decided(); }

Status ViewChange::await(CallTime& time) {
  const std::function<bool()>& interrupted = group_.options_.interrupted;
  while (true) {
    // Another thread may leave the group. Acquire: partner: leave().
    if (group_.verdict_.closed.load(std::memory_order_acquire)) return group_.verdict();
    group_.progress();
    if (nodes_) NodesAgreement::show_links(group_, next_);
    const std::vector<int> undecided = decide_seats();
    if (nodes_ && !undecided.empty()) nodes_->send_missing(undecided);
    if (nodes_ && undecided.empty()) {
      if (Status status = nodes_->step(); !status.ok()) return status;
    }
    if (undecided.empty() && are_known()) return {};
    const int rank = group_.rank_;
    if (interrupted && interrupted())
      return {Code::kInterrupted, fmt::format("rank {} was interrupted", rank), rank};
    if (time.passed()) return late(undecided, time);
    sleep(undecided);
  }
}

Status ViewChange::late(const std::vector<int>& undecided, const CallTime& time) const {
  const double limit_s = std::chrono::duration<double>(time.limit()).count();
  const std::vector<int> missing = undecided.empty() ? nodes_->missing() : undecided;
  return {Code::kTimeout,
          fmt::format("{} of ranks {} did not come to view {}; deadline {:.3g} s; a rank "
                      "that is alive is not left behind: end its process with fence(), or repeat "
                      "the call",
                      group_.name_of(missing[0]), fmt::join(missing, ", "), next_, limit_s),
          missing[0]};
}

void ViewChange::sleep(const std::vector<int>& undecided) noexcept {
  if (group_.messages_) return group_.messages_->sleep(kNapUs);
  group_.flags_->sleep(group_.rank_, group_.flags_->slot(undecided[0]).seat, Seat::outside(next_));
}

// Every rank of the view comes to the same members and numbers: seats are decided once, and what a
// rank wrote before it took its seat stays until all ranks of the view come to the one after it.
Status ViewChange::begin() {
  View view{.number = next_};
  for (const int rank : view_.members) {
    // Acquire: what the rank wrote before it came. Partner: decide_seat().
    const std::uint64_t seat = group_.flags_->slot(rank).seat.load(std::memory_order_acquire);
    if (!nodes_ && Seat::was_in(seat, next_)) view.members.push_back(rank);
  }
  if (nodes_) view.members = nodes_->members();
  if (!std::ranges::count(view.members, group_.rank_)) return outside();
  NextView::begin(group_, std::move(view));
  return {};
}

void NextView::prepare(GroupState& group, std::uint64_t next) noexcept {
  group.survival_.messages().end(group, next);
  group.survival_.prepare(next);
  const std::uint64_t barriers = group.flags_->num_barriers(group.rank_);
  // Relaxed: published by the seat, or by the word that this rank is ready for newcomers.
  GroupSlot& mine = group.flags_->slot(group.rank_);
  mine.barriers[next % 2].store(barriers, std::memory_order_relaxed);
  mine.objects[next % 2].store(group.nodes_.num_objects, std::memory_order_relaxed);
}

void NextView::begin(GroupState& group, View view, std::vector<Offer> offers) noexcept {
  SharedFlags& flags = *group.flags_;
  std::uint64_t barriers = 0, objects = 0;
  for (const int rank : view.members) {
    const GroupSlot& slot = flags.slot(rank);
    barriers = std::max(barriers, slot.barriers[view.number % 2].load(std::memory_order_relaxed));
    objects = std::max(objects, slot.objects[view.number % 2].load(std::memory_order_relaxed));
  }
  group.nodes_.num_objects = static_cast<std::uint32_t>(objects);
  // read_barrier() tells late messages of the last view by these flags of ranks of other nodes.
  for (const int rank : view.members)
    if (!group.here(rank)) raise_to(flags.slot(rank).barrier, barriers);
  raise(flags.slot(group.rank_).barrier, barriers);
  group.node_ranks_.clear();
  std::ranges::copy_if(view.members, std::back_inserter(group.node_ranks_),
                       [&group](int rank) { return group.here(rank); });
  std::optional<Error> unlinked;
  std::vector<std::byte> decided;
  if (group.messages_) decided = NodesAgreement::decision(group, view);
  if (group.messages_) unlinked = group.survival_.messages().begin_links(group, view);
  const std::uint64_t number = view.number;
  flags.begin_view(view.number);
  group.log(LogLevel::kInfo,
            fmt::format("view {}: ranks {}", view.number, fmt::join(view.members, ", ")));
  if (group.messages_) group.survival_.messages().hold(group, offers);
  group.survival_.begin(std::move(view));
  group.survival_.set_open_offers(std::move(offers));
  group.ring();
  {
    const std::lock_guard lock(group.verdict_.mutex);
    group.verdict_.status = {};
    group.verdict_.broken.store(false, std::memory_order_release);  // partner: verdict()
  }
  if (group.messages_) group.survival_.messages().begin(group, number, std::move(decided));
  if (unlinked) static_cast<void>(group.fail(unlinked->what()));
}

Status verdict_in(GroupState& group, std::uint64_t view, const char* object) noexcept {
  Status status = group.verdict();
  const std::uint64_t now = group.view().number;
  if (!status.ok() || view == now) return status;
  return {Code::kClosed,
          fmt::format("{} were made in view {}, which is over; this is view {}", object, view, now),
          group.rank()};
}

}  // namespace ferry::internal
