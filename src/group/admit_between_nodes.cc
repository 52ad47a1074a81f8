// How ranks of several nodes begin a view in which processes take the places of lost ranks
// (docs/protocol.md, "Ranks that come back").
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "bootstrap/agree.h"
#include "bootstrap/handshake.h"
#include "group/agreement_between_nodes.h"
#include "group/leaving.h"
#include "group/state.h"
#include "network/transport.h"

namespace ferry::internal {

namespace {

constexpr int kNapForViewUs = 200;  // between two looks for the ranks of the view
constexpr std::size_t kJobDigits = 16;
constexpr std::int64_t kAskNs = 5'000'000;  // between two questions for the ranks of the view

}  // namespace

// Until all ranks have said that they are ready, a failure leaves the view as it is. Then each
// member comes to the next view, whatever happens, as in survive(): another one may have seen all
// of them ready. The agreement of the nodes decides which of the newcomers are in that view.
void NextView::enter_between_nodes(GroupState& group, const Admission& admission,
                                   std::vector<Offer> offers, BootstrapCollectives* invited,
                                   const Deadline& by) {
  const bool joins = admission.has_newcomer(group.rank_);
  const std::function<void()> look = [&group] { look_for_loss(group); };
  const Deadline looking = joins ? by : by.looking(look);
  std::unique_ptr<Rendezvous> meeting;
  if (!joins) meeting = meet(group, admission, invited, looking);
  Rendezvous& all = joins ? *group.rendezvous_ : *meeting;
  begin_memory(group, admission, all, looking);
  group.meet_neighbours(all, looking);
  link(group, admission, all, looking);
  pass_on(offers, admission, all, looking);
  make_places(group, admission, offers);
  if (joins)
    come_as_newcomer(group, admission, std::move(offers), by);
  else
    come_as_member(group, admission, std::move(meeting), looking);
}

// Newcomers of a node without members back its memory, which is new.
void NextView::begin_memory(GroupState& group, const Admission& admission, Rendezvous& all,
                            const Deadline& by) {
  const int rank = group.rank_;
  std::string problem;
  if (admission.is_new_node(rank))
    problem = group.flags_->back(rank == admission.node_ranks(rank)[0], admission.group);
  check_no_problem(all.all_gather(problem, by), all.ranks());
}

// Members and newcomers let each other in, and forget the processes that were lost.
void NextView::link(GroupState& group, const Admission& admission, Rendezvous& all,
                    const Deadline& by) {
  const bool joins = admission.has_newcomer(group.rank_);
  std::string mine, problem;
  try {
    if (joins) {
      const std::uint64_t job = number_in(hex(fresh_nonce()), group.rank_);
      group.messages_ =
          std::make_unique<MessageChannel>(ucx_transport(), group.rank_, group.size_, job);
    }
    mine = fmt::format("{:0{}x}{}", group.messages_->job(), kJobDigits, group.messages_->address());
  } catch (const Error& error) {
    problem = error.what();
  }
  check_no_problem(all.all_gather(problem, by), all.ranks());
  const std::vector<std::string> texts = all.all_gather(mine, by);
  std::vector<std::string> addresses;
  for (std::size_t place = 0; place < texts.size(); ++place) {
    const int rank = all.ranks()[place];
    if (group.here(rank) || !(joins || admission.has_newcomer(rank))) continue;
    replace(group, rank, texts[place]);
    addresses.push_back(group.nodes_.addresses[rank]);
  }
  group.messages_->let_in(addresses);
  all.all_gather("", by);  // from now on all let each other in
  if (!joins) return;
  group.begin_progress();
  share_progress(&group);
}

void NextView::replace(GroupState& group, int rank, const std::string& job_and_address) {
  const std::uint64_t job = number_in(job_and_address, rank);
  const auto held = group.lock();
  BetweenNodes& nodes = group.nodes_;
  group.messages_->replace(rank, job);
  nodes.addresses[rank] = job_and_address.substr(kJobDigits);
  nodes.reached[rank] = nodes.acknowledged[rank] = nodes.listens[rank] = false;
  std::erase(nodes.to_acknowledge, rank);
  nodes.why_lost.erase(rank);
  nodes.lost[rank].store(false, std::memory_order_release);
  nodes.farewell[rank].store(false, std::memory_order_release);
}

void NextView::come_as_member(GroupState& group, const Admission& admission,
                              std::unique_ptr<Rendezvous> meeting, const Deadline& by) {
  Status failure;
  try {
    meeting->all_gather("", by);
  } catch (const Error& error) {
    failure = {error.code(), error.what(), error.culprit()};
  }
  group.rendezvous_ = std::move(meeting);
  group.survival_.set_met_for({.number = admission.view, .members = admission.ranks()});
  if (failure.ok()) take_seats(group, admission);
  require_ok(settle(group, admission, failure, std::chrono::nanoseconds(by.remaining_ns())));
  const View& view = group.view();
  std::vector<int> missing;
  std::ranges::set_difference(admission.ranks(), view.members, std::back_inserter(missing));
  if (missing.empty()) return;
  throw Error(Code::kPeerRejected,
              fmt::format("view {} began without ranks {}{}", view.number, fmt::join(missing, ", "),
                          failure.ok() ? "" : ": " + failure.message()),
              missing[0]);
}

// All are ready. Members of a newcomer's node decide its seat; if that node has no members, each
// node decides it in its own memory.
void NextView::take_seats(GroupState& group, const Admission& admission) noexcept {
  for (const int rank : admission.newcomers) {
    if (!group.here(rank) && !admission.is_new_node(rank)) continue;
    const bool alive = group.rendezvous_->alive(rank);
    const std::uint64_t next = admission.view;
    group.flags_->decide_seat(rank, next, alive ? Seat::in(next) : Seat::outside(next));
  }
}

void NextView::come_as_newcomer(GroupState& group, const Admission& admission,
                                std::vector<Offer> offers, const Deadline& by) {
  const std::uint64_t next = admission.view;
  group.survival_.set_met_for({.number = next, .members = admission.ranks()});
  group.survival_.messages().end(group, next);
  try {
    group.rendezvous_->all_gather("", by);
  } catch (const Error&) {
    // Ranks of other nodes see that this process ends. Ranks of its node may have decided that it
    // is in the view.
    if (admission.is_new_node(group.rank_) || !has_seat(group, admission)) throw;
  }
  View view{.number = next, .members = {}};
  try {
    view.members = await_decision(group, admission, by);
  } catch (const Error&) {
    // Other ranks of its node may have begun that view, and would wait for this process.
    group.flags_->set_left(group.rank_);
    group.ring();
    throw;
  }
  if (!std::ranges::binary_search(view.members, group.rank_)) {
    throw Error(Code::kPeerLost,
                fmt::format("view {} began without rank {}, which tried to take its place in it",
                            next, group.rank_),
                admission.coordinator);
  }
  NextView::begin(group, std::move(view), std::move(offers));
}

// Whether members of this node have taken the seat of this newcomer, which otherwise is outside.
// They may have made the place for another process since, in a later admission to the same view.
bool NextView::has_seat(GroupState& group, const Admission& admission) {
  const int rank = group.rank_;
  const std::uint64_t next = admission.view;
  const std::uint64_t seat = group.flags_->decide_seat(rank, next, Seat::outside(next));
  // Relaxed: published by the seat.
  const std::uint64_t place_of = group.flags_->slot(rank).place_of.load(std::memory_order_relaxed);
  return seat == Seat::in(next) && place_of == number_in(admission.name, rank);
}

// The members of this node write the ranks of the view to its memory. If the node has no members,
// this rank asks a member of another node, which replies when it has begun the view.
std::vector<int> NextView::await_decision(GroupState& group, const Admission& admission,
                                          const Deadline& by) {
  const std::uint64_t next = admission.view;
  const bool alone = admission.is_new_node(group.rank_);
  NodesAgreement nodes(group, next);
  const auto may_know = [&](int rank) {
    if (!group.here(rank)) return alone && !ViewMessages::unreachable(group, rank);
    return !group.flags_->has_left(rank) && group.rendezvous_->alive(rank);
  };
  std::int64_t ask_ns = 0;
  while (true) {
    group.progress();
    const auto knows = std::ranges::find_if(admission.members, may_know);
    if (!alone) {
      require_ok(nodes.step());
      if (nodes.decided()) return nodes.members();
    } else if (auto members = NodesAgreement::take_decision(group, next)) {
      return *members;
    }
    if (knows == admission.members.end()) {
      throw Error(Code::kPeerLost,
                  fmt::format("the members that admitted rank {} were lost", group.rank_),
                  admission.coordinator);
    }
    if (by.passed()) {
      throw ended(by, group.rank_,
                  {Code::kTimeout,
                   fmt::format("the members of view {} did not agree on the next one before the "
                               "deadline of rank {}",
                               next - 1, group.rank_),
                   *knows});
    }
    by.look([](const Error& why) { throw why; });
    if (alone && now_ns() >= ask_ns) {
      ask_ns = now_ns() + kAskNs;
      NodesAgreement::ask(group, next, *knows);
    }
    group.messages().sleep(kNapForViewUs);
  }
}

}  // namespace ferry::internal
