// How a process becomes a rank of a group that lacks it (docs/protocol.md, "Ranks that come back").
#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "group/state.h"

namespace ferry::internal {

std::shared_ptr<GroupState> NextView::newcomer(std::unique_ptr<Rendezvous> meeting,
                                               const Admission& admission,
                                               const GroupOptions& options,
                                               const GroupOrigin& origin, const Deadline& by) {
  std::shared_ptr<GroupState> group(new GroupState(std::move(meeting), options, origin));
  const int rank = group->rank_, size = group->size_;
  std::shared_ptr<Segment> segment =
      group->rendezvous_->pass_on(nullptr, SharedFlags::bytes(size), by);
  group->flags_.emplace(std::move(segment), rank, size, admission.view - 1);
  const Topology& topology = group->topology_;
  const bool exports = admission.is_new_node(rank) ? rank == admission.node_ranks(rank)[0]
                                                   : group->flags_->exports();
  const std::span<const int> node = topology.node_ranks(topology.node_of(rank));
  if (exports) group->flags_->show_metrics({node.begin(), node.end()});
  group->survival_.meeting().group = admission.group;
  group->survival_.set_view({.number = admission.view - 1, .members = admission.members});
  try {
    enter(*group, admission, {}, nullptr, by);
  } catch (...) {
    group->verdict_.closed.store(true, std::memory_order_relaxed);  // it is in no group yet
    throw;
  }
  group->counters().add(Counter::kPid, static_cast<std::uint64_t>(getpid()));
  group->log(LogLevel::kInfo, fmt::format("took the place of rank {} in a group of {} by {} ({})",
                                          rank, size, origin.launcher, origin.reason));
  return group;
}

}  // namespace ferry::internal
