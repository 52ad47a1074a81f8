#include "exchange/internode/mate_links.h"

namespace ferry::internal {

MateLinks::MateLinks(GroupState& group, const WindowView& view, Algorithm algorithm,
                     bool second_way)
    : group_(&group),
      layout_(*view.layout),
      view_{view.segment, &layout_, view.local_ranks, view.places},
      second_way_(second_way),
      everybody_(group.topology(), group.rank(), std::vector<bool>(group.size(), true),
                 algorithm == Algorithm::kFullmesh, second_way),
      table_(everybody_),
      crossed_(group.size()) {
  if (const std::vector<bool>* const members = group.survival().waited())
    table_ = ForwardingTable(topology(), rank(), *members, /*flat=*/true);
  group.reach(table_, /*together=*/true);
}

void MateLinks::send(int peer, const MessageHead& head, std::span<const std::byte> body) {
  messages().send_now(peer, bytes_of(head), body);
  count_all(peer, sizeof head + body.size());
}

void MateLinks::send_soon(int peer, const MessageHead& head, std::span<const std::byte> body) {
  messages().send_soon(peer, bytes_of(head), body);
  count_all(peer, sizeof head + body.size());
}

CrossedBytes MateLinks::crossed(int level) const {
  CrossedBytes sum;
  for (int peer = 0; peer < num_ranks(); ++peer) {
    if (topology().group_of(peer, level) == topology().group_of(rank(), level)) continue;
    sum.rows += crossed_[peer].rows.load(std::memory_order_relaxed);
    sum.all += crossed_[peer].all.load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace ferry::internal
