// Blame: finds the rank that is named when a wait fails. These are pure functions of the state that
// the waiting rank has seen of all ranks (giving_up.cc). tests/group/blame_test.cc has a table of
// cases.
#pragma once

#include <cstdint>
#include <vector>

namespace ferry::internal {

// The state of one rank, as a waiting rank has seen it.
struct RankSeen {
  bool missing = false;    // its flag has not come
  bool here = false;       // it is of the waiting rank's node
  bool gone = false;       // it died, left or is lost: nothing more comes from it
  bool gave_up = false;    // it has named a culprit
  int waits_for = -1;      // the rank that it is seen to wait for; -1: none
  int last_hop = -1;       // the rank that passes its flags on to this node, often itself
  std::uint64_t flag = 0;  // the value of its flag
};

struct Seen {
  int rank = 0;                     // the one that waits
  std::vector<RankSeen> ranks;      // [ranks]
  bool saw_waits = false;           // `waits_for` was looked at
  bool ranks_pass_messages = true;  // a rank that does not wait passes nothing on
};

// [missing] The ranks whose flags have not come, ascending.
std::vector<int> missing_ranks(const Seen& seen);

// The rank that holds up a missing one: itself, or the last hop of its flags to this node that is
// gone or missing too, or does not wait where it is to pass them on.
int answerable(const Seen& seen, int missing);

// A rank that is gone although this one waits for it or for what it passes on; -1: there is none. A
// rank that gave up before it went is no culprit: it has named one.
int lost_culprit(const Seen& seen);

// The same for a wait whose timeout does not break the group (Await::needed): a rank of `needed`
// [ranks] that is gone, whether its flag has come or not; or a missing rank if all missing ranks
// are gone; -1: there is none.
int lost_culprit(const Seen& seen, const std::vector<bool>& needed);

// The rank that is named at a deadline; some rank is missing. A rank of this node that does not
// wait holds up the others. Among ranks of which nothing is known, the one that is furthest behind
// does. A rank that waits is held up by the one that it waits for.
int late_culprit(const Seen& seen);

}  // namespace ferry::internal
