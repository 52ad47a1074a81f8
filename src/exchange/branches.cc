#include "exchange/token_groups.h"

namespace ferry::internal {

TokenGroups::TokenGroups(const Grouping& grouping, const Route& route, std::int64_t first,
                         int count) {
  const ActiveSet& active = *route.active;
  for (std::int64_t entry = first; entry < first + count; ++entry) {
    const RowRef ref = route.refs[entry];
    if (!ref.sent()) continue;
    const int rank = active.ranks[active.index(ref.member, active.position)];
    const int group = grouping.group_of(rank);
    int at = num_entries_++;
    for (; at > 0 && group_[at - 1] > group; --at) {
      group_[at] = group_[at - 1];
      node_[at] = node_[at - 1];
      entries_[at] = entries_[at - 1];
    }
    group_[at] = group;
    node_[at] = grouping.nodes->node_of(rank);
    entries_[at] = entry;
  }
  for (int i = 0; i < num_entries_; ++i) {
    if (i == 0 || group_[i] != group_[i - 1]) begin_[num_groups_++] = i;
  }
}

}  // namespace ferry::internal
