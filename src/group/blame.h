// Blame: finds the rank that is named when a wait fails. These are pure functions of the state that
// the waiting rank has seen of all ranks (giving_up.cc). tests/group/blame_test.cc has a table of
// cases.
#pragma once

#include <cstdint>
#include <vector>

namespace ferry::internal {

// The state of one rank, as a waiting rank has seen it.
struct RankSeen {
  bool missing = false;    // its flag has not been raised
  bool here = false;       // it is on the waiting rank's node
  bool gone = false;       // it died, departed or is lost: it sends nothing more
  bool gave_up = false;    // it has given up and named a culprit
  int waits_for = -1;      // the rank that it is seen to wait for; -1: none
  int last_hop = -1;       // the rank that passes its flags on to this node, often itself
  std::uint64_t flag = 0;  // the value of its flag
};

struct Seen {
  int rank = 0;                     // the rank that waits
  std::vector<RankSeen> ranks;      // [ranks]
  bool saw_waits = false;           // `waits_for` of the ranks is known
  bool ranks_pass_messages = true;  // a rank that does not wait passes no messages on
};

// The ranks whose flags are missing, ascending.
std::vector<int> missing_ranks(const Seen& seen);

// The rank that is answerable for a missing flag: the rank of the flag; or the last hop of its
// flags to this node, if that rank is gone or missing too, or does not wait although it has to pass
// them on.
int answerable(const Seen& seen, int missing);

// A rank that is gone although this rank waits for it or for flags that it passes on; -1: there is
// none. A rank that gave up before it went is no culprit, since it has named one.
int lost_culprit(const Seen& seen);

// The same for a wait whose timeout does not break the group (Await::needed): a rank of `needed`
// [ranks] that is gone, whether its flag has come or not; or a missing rank if all missing ranks
// are gone; -1: there is none.
int lost_culprit(const Seen& seen, const std::vector<bool>& needed);

// The rank that is named at a deadline, when some rank is missing. The search begins at a missing
// rank: one of this node that does not wait, else one of another node, else one of this node that
// waits; of several, the one that is furthest behind. From a rank that waits, the search goes on to
// the rank for which that one waits. The result is the rank that is answerable() for the last one.
int late_culprit(const Seen& seen);

}  // namespace ferry::internal
