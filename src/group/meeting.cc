// How the ranks of a view meet in calls that make objects, or that let others join.
#include <functional>

#include "group/state.h"
#include "group/survival.h"

namespace ferry::internal {

// While this rank waits there, it moves messages between nodes and checks whether the group is
// broken. If the wait fails, the rendezvous only knows that a connection ended. So an error that a
// rank reported before is thrown instead; or else the cause that the ranks of this node see, since
// the rank that died may be the one that had to pass the report on.
void meet_in_view(GroupState& group, const Deadline& by,
                  const std::function<void(Rendezvous&, const Deadline&)>& call) {
  Status said;
  const std::function<void()> look = [&group, &said] {
    group.progress();
    said = group.verdict();
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

std::vector<std::string> gather_in_view(GroupState& group, const std::string& mine,
                                        const Deadline& by) {
  std::vector<std::string> texts;
  meet_in_view(group, by, [&](Rendezvous& meeting, const Deadline& looking) {
    texts = meeting.all_gather(mine, looking);
  });
  return texts;
}

}  // namespace ferry::internal
