#include "group/blame.h"

#include <algorithm>
#include <utility>

namespace ferry::internal {

std::vector<int> missing_ranks(const Seen& seen) {
  std::vector<int> missing;
  for (int rank = 0; rank < std::ssize(seen.ranks); ++rank)
    if (seen.ranks[rank].missing) missing.push_back(rank);
  return missing;
}

int answerable(const Seen& seen, int missing) {
  int culprit = missing;
  for (int from = missing, hop = seen.ranks[from].last_hop; hop != from && hop != seen.rank;
       from = hop, hop = seen.ranks[from].last_hop) {
    const RankSeen& on_the_way = seen.ranks[hop];
    if (on_the_way.gave_up || on_the_way.waits_for >= 0) continue;
    const bool stuck = seen.saw_waits && on_the_way.here && seen.ranks_pass_messages;
    if (stuck || on_the_way.gone || on_the_way.missing) culprit = hop;
  }
  return culprit;
}

int lost_culprit(const Seen& seen) {
  for (const int missing : missing_ranks(seen)) {
    const int culprit = answerable(seen, missing);
    if (seen.ranks[culprit].gone && !seen.ranks[culprit].gave_up) return culprit;
  }
  return -1;
}

int lost_culprit(const Seen& seen, const std::vector<bool>& needed) {
  for (int rank = 0; rank < std::ssize(seen.ranks); ++rank)
    if (needed[rank] && seen.ranks[rank].gone && !seen.ranks[rank].gave_up) return rank;
  const std::vector<int> missing = missing_ranks(seen);
  const auto is_gone = [&seen](int rank) { return seen.ranks[rank].gone; };
  return !missing.empty() && std::ranges::all_of(missing, is_gone) ? missing[0] : -1;
}

int late_culprit(const Seen& seen) {
  const auto order = [&seen](int rank) {
    const RankSeen& one = seen.ranks[rank];
    return std::pair(!one.here ? 1 : one.waits_for >= 0 ? 2 : 0, one.flag);
  };
  const std::vector<int> missing = missing_ranks(seen);
  int last = *std::ranges::min_element(missing, {}, order);
  for (int hops = 0; hops < std::ssize(seen.ranks) && seen.ranks[last].waits_for >= 0; ++hops) {
    const int awaited = seen.ranks[last].waits_for;
    // A rank that is seen to wait for itself waits for the network.
    if (awaited == seen.rank || awaited == last) break;
    last = awaited;
  }
  return answerable(seen, last);
}

}  // namespace ferry::internal
