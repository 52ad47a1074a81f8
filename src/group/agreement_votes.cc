// The votes of NodesAgreement: which nodes can be reached and reach each other, whether they are
// enough, and what a node does when they are not.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/clock.h"
#include "group/agreement_between_nodes.h"
#include "group/state.h"

namespace ferry::internal {

// The slot of a rank of the node that is the same in every view.
GroupSlot& NodesAgreement::slot_of_node(int rank) const noexcept {
  const Topology& topology = group_.topology();
  return group_.flags_->slot(topology.node_ranks(topology.node_of(rank))[0]);
}

GroupSlot& NodesAgreement::slot(const Node& node) const noexcept {
  return slot_of_node(node.ranks[0]);
}

// Relaxed: it publishes no other memory.
int NodesAgreement::outvoted_without(const Node& node) const noexcept {
  const std::uint64_t word = slot(node).outvoted.load(std::memory_order_relaxed);
  return word >> AbortWord::kViewShift == next_ ? static_cast<int>(word & AbortWord::kMask) : -1;
}

// Relaxed: as in outvoted_without().
bool NodesAgreement::gave_up(const GroupState& group, int first, std::uint64_t view) noexcept {
  const std::uint64_t word = group.flags_->slot(first).outvoted.load(std::memory_order_relaxed);
  return word >> AbortWord::kViewShift == view;
}

void NodesAgreement::set_outvoted(const Node& node, int without) noexcept {
  slot(node).outvoted.store(next_ << AbortWord::kViewShift | static_cast<std::uint64_t>(without),
                            std::memory_order_relaxed);
}

// The rank of a node to which messages go, the lowest one to which there is a link; -1: there is
// none.
int NodesAgreement::linked(const Node& node) const noexcept {
  const auto found = std::ranges::find_if(
      node.ranks, [this](int rank) { return !ViewMessages::unreachable(group_, rank); });
  return found == node.ranks.end() ? -1 : *found;
}

// The same; -1 also if the node has given up, or if there is no link to its speaker, which lives.
int NodesAgreement::reachable(const Node& node) const noexcept {
  if (&node != &nodes_[mine_] && outvoted_without(node) >= 0) return -1;
  if (node.unlinked_ns > 0 && now_ns() - node.unlinked_ns > kApartNs) return -1;
  return linked(node);
}

// Shows one such rank. If there are more, the next view lacks this one, and another is shown then.
void NodesAgreement::show_links(GroupState& group, std::uint64_t next) noexcept {
  std::uint64_t shown = 0;
  for (const int rank : group.view().members) {
    const bool outside =
        group.flags_->slot(rank).seat.load(std::memory_order_relaxed) == Seat::outside(next);
    if (group.here(rank) || outside || !ViewMessages::unreachable(group, rank)) continue;
    shown = static_cast<std::uint64_t>(rank) + 1;
    break;
  }
  // Relaxed: it publishes no other memory.
  group.flags_->slot(group.rank())
      .unlinked.store(next << AbortWord::kViewShift | shown, std::memory_order_relaxed);
}

// What the living ranks of this node show.
std::vector<int> NodesAgreement::unlinked() const {
  std::vector<int> ranks;
  for (const int rank : group_.view().members) {
    if (!group_.here(rank)) continue;
    const std::uint64_t word = group_.flags_->slot(rank).unlinked.load(std::memory_order_relaxed);
    const bool ended = group_.flags_->has_left(rank) || !group_.rendezvous_->alive(rank);
    const std::uint64_t shown = word & AbortWord::kMask;
    if (!ended && word >> AbortWord::kViewShift == next_ && shown > 0)
      ranks.push_back(static_cast<int>(shown) - 1);
  }
  return ranks;
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

// Whether a rank of one node has no link to a rank of the other one that lives.
bool NodesAgreement::apart(const Node& one, const Node& other) const noexcept {
  return std::ranges::any_of(one.promise.unreached, [&](int rank) {
    return std::ranges::count(other.ranks, rank) > 0 &&
           std::ranges::count(other.promise.unreached, rank) == 0;
  });
}

// A view in which two nodes cannot reach each other would end at once, and so would those that
// follow. Of the nodes that promised, those that are apart from this one are left out, and then, as
// long as two of the rest are apart, the one that is apart from the most votes. True: none is left
// out.
bool NodesAgreement::keep_together() noexcept {
  const auto cut = [this](const Node& one, const Node& other) {
    return apart(one, other) || apart(other, one);
  };
  bool together = true;
  for (Node& node : nodes_) {
    node.kept = node.promised && !cut(node, nodes_[mine_]);
    together = together && node.kept == node.promised;
  }
  while (true) {
    Node* worst = nullptr;
    std::size_t most = 1;
    for (Node& node : nodes_) {
      std::size_t votes = 0;
      for (const Node& other : nodes_) {
        if (node.kept && other.kept && cut(node, other)) votes += other.ranks.size();
      }
      if (votes >= most) worst = &node, most = votes;
    }
    if (!worst) break;
    worst->kept = together = false;
  }
  if (together || apart_ns_ == 0) apart_ns_ = together ? 0 : now_ns();
  return together;
}

// Says so to the other ranks of this node, and to the nodes that can be reached, so that they do
// not wait for this node.
Status NodesAgreement::give_up() {
  auto gone = std::ranges::find_if(nodes_, [this](const Node& one) { return linked(one) < 0; });
  if (gone == nodes_.end()) {
    gone = std::ranges::find_if(
        nodes_, [this](const Node& one) { return reachable(one) < 0 || !one.kept; });
  }
  return give_up(gone->ranks[0]);
}

// `without`: a rank that this node cannot reach.
Status NodesAgreement::give_up(int without) {
  set_outvoted(nodes_[mine_], without);
  // To all ranks, as the lowest one of a node may have just left; and to those that the view lacks,
  // as they may still ask for its ranks.
  for (int rank = 0; rank < group_.size(); ++rank) {
    const bool known = group_.survival().has(rank) || group_.nodes_.reached[rank];
    if (known && !ViewMessages::unreachable(group_, rank))
      send(group_, rank, next_, {.what = What::kOutvoted});
  }
  group_.move_messages();  // the caller may compute now
  phase_ = Phase::kIdle;
  return minority(without);
}

// `without`: a rank that the speaker of this node cannot reach.
Status NodesAgreement::minority(int without) const {
  std::vector<int> gone, left;
  const bool chosen = std::ranges::any_of(nodes_, &Node::kept);
  for (const Node& node : nodes_) {
    if (linked(node) < 0 || node.ranks[0] == without || (chosen && !node.kept)) {
      std::ranges::copy(node.ranks, std::back_inserter(gone));
    } else if (reachable(node) >= 0) {
      std::ranges::copy(node.ranks, std::back_inserter(left));
    }
  }
  return {Code::kPeerLost,
          fmt::format("the nodes with ranks {} of view {} cannot be reached{}. Ranks {} "
                      "are not more than half of the view, nor half of it with rank {}, and so "
                      "they cannot go on: the others might. Make a new group",
                      fmt::join(gone, ", "), group_.view().number, chosen ? " by all others" : "",
                      fmt::join(left, ", "), group_.view().members[0]),
          without};
}

}  // namespace ferry::internal
