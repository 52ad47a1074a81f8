// The votes of NodesAgreement: which nodes can be reached, whether they are enough, and what a node
// does when they are not.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "group/agreement_between_nodes.h"
#include "group/state.h"

namespace ferry::internal {

// The slot of a rank of the node that is the same in every view.
GroupSlot& NodesAgreement::slot(const Node& node) const noexcept {
  const Topology& topology = group_.topology();
  return group_.flags_->slot(topology.node_ranks(topology.node_of(node.ranks[0]))[0]);
}

// Relaxed: it publishes no other memory.
int NodesAgreement::outvoted_without(const Node& node) const noexcept {
  const std::uint64_t word = slot(node).outvoted.load(std::memory_order_relaxed);
  return word >> AbortWord::kViewShift == next_ ? static_cast<int>(word & AbortWord::kMask) : -1;
}

void NodesAgreement::set_outvoted(const Node& node, int without) noexcept {
  slot(node).outvoted.store(next_ << AbortWord::kViewShift | static_cast<std::uint64_t>(without),
                            std::memory_order_relaxed);
}

// The lowest rank of a node to which there is a link; -1: there is none.
int NodesAgreement::linked(const Node& node) const noexcept {
  const auto found = std::ranges::find_if(
      node.ranks, [this](int rank) { return !ViewMessages::unreachable(group_, rank); });
  return found == node.ranks.end() ? -1 : *found;
}

// The rank of a node to which messages go; -1: it cannot be reached, or has given up.
int NodesAgreement::reachable(const Node& node) const noexcept {
  if (&node != &nodes_[mine_] && outvoted_without(node) >= 0) return -1;
  return linked(node);
}

std::size_t NodesAgreement::proposer() const noexcept {
  std::size_t node = 0;
  while (node != mine_ && reachable(nodes_[node]) < 0) ++node;
  return node;
}

bool NodesAgreement::enough(bool Node::*vote) const noexcept {
  std::size_t votes = 0, all = 0;
  for (const Node& node : nodes_) {
    all += node.ranks.size();
    if (node.*vote) votes += node.ranks.size();
  }
  return 2 * votes > all || (2 * votes == all && nodes_[0].*vote);
}

bool NodesAgreement::all_or_gone(bool Node::*vote) const noexcept {
  return std::ranges::all_of(nodes_,
                             [&](const Node& node) { return node.*vote || reachable(node) < 0; });
}

// The other ranks of this node, and the nodes that can be reached, do not wait for this one.
Status NodesAgreement::give_up() {
  auto gone = std::ranges::find_if(nodes_, [this](const Node& one) { return linked(one) < 0; });
  if (gone == nodes_.end())
    gone = std::ranges::find_if(nodes_, [this](const Node& one) { return reachable(one) < 0; });
  const int without = gone->ranks[0];
  set_outvoted(nodes_[mine_], without);
  for (Node& node : nodes_) send(node, {.what = What::kOutvoted});
  phase_ = Phase::kIdle;
  return minority(without);
}

// `without`: a rank that the speaker of this node cannot reach.
Status NodesAgreement::minority(int without) const {
  std::vector<int> gone, left;
  for (const Node& node : nodes_) {
    if (linked(node) < 0 || node.ranks[0] == without) {
      std::ranges::copy(node.ranks, std::back_inserter(gone));
    } else if (reachable(node) >= 0) {
      std::ranges::copy(node.ranks, std::back_inserter(left));
    }
  }
  return {
      Code::kPeerLost,
      fmt::format("survive: no rank of the nodes with ranks {} of view {} can be reached. Ranks "
                  "{} are not more than half of the view, nor half of it with rank {}, and so "
                  "they cannot go on: the others might. Make a new group",
                  fmt::join(gone, ", "), group_.view().number, fmt::join(left, ", "),
                  group_.view().members[0]),
      without};
}

}  // namespace ferry::internal
