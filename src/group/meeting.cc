// How the ranks of a view meet in calls that make objects, or that let others join.
#include <fmt/format.h>

#include <functional>
#include <optional>
#include <span>

#include "bootstrap/agree.h"
#include "group/state.h"
#include "group/survival.h"

namespace ferry::internal {

namespace {

// The time between two looks for the address of a meeting.
constexpr int kLookUs = 200;

}  // namespace

// While this rank waits there, it moves messages between nodes, checks whether the group is broken,
// and ends the view if a link to a member is lost. The connection of the meeting to a lost rank may
// last longer than the link; and a rank that gave up may have no way left to say so. If the wait
// fails, the rendezvous only knows that a connection ended. So an error that a rank reported before
// is thrown instead; or else the cause that the ranks of this node see, since the rank that died
// may be the one that had to pass the report on.
void meet_in_view(GroupState& group, const Deadline& by,
                  const std::function<void(Rendezvous&, const Deadline&)>& call) {
  Status said;
  const std::function<void()> look = [&group, &said] {
    group.progress();
    said = group.verdict();
    if (said.ok()) said = NextView::end_by_lost_link(group);
    require_ok(said);
  };
  try {
    const Deadline looking = by.looking(look);
    call(meeting_of(group, looking), looking);
  } catch (const Error& error) {
    if (said.ok()) look();
    if (error.code() != Code::kPeerLost) throw;
    throw absence(group, error);
  }
}

// The members of a node find the text in its memory, as if the lowest member had written it there.
std::string ViewMessages::pass_on_meeting(GroupState& group, const std::string& mine,
                                          const Deadline& by) {
  const View& view = group.view();
  SharedFlags& flags = *group.flags_;
  const int lowest = view.members[0], rank = group.rank();
  if (rank == lowest) {
    flags.set_meeting(rank, mine);
    for (const ForwardingTable::Mate& mate : group.forwarding().mates)
      group.send(mate.rank, GroupMessage::kMeeting, view.number, std::as_bytes(std::span(mine)));
  }
  while (true) {
    if (const auto text = flags.meeting(lowest)) return *text;
    by.look([](const Error& why) { throw why; });
    if (by.passed()) {
      throw ended(by, rank,
                  {Code::kTimeout,
                   fmt::format("{} did not say where the members of view {} meet before the "
                               "deadline of rank {}",
                               group.name_of(lowest), view.number, rank),
                   lowest});
    }
    group.progress();
    group.messages().sleep(kLookUs);
  }
}

std::vector<std::string> gather_in_view(GroupState& group, const std::string& mine,
                                        const Deadline& by) {
  std::vector<std::string> texts;
  meet_in_view(group, by, [&](Rendezvous& meeting, const Deadline& looking) {
    texts = meeting.all_gather(mine, looking);
  });
  return texts;
}

}  // namespace ferry::internal
