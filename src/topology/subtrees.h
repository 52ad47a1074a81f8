// Subtrees: the parts into which one rank divides the tree of ranks. They are its own node, and the
// ranks that it reaches through each of its mates. A token crosses a link once for each subtree
// that has rows of the token, and one sum per subtree returns (docs/numerics.md, "Between nodes").
// All functions are pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/limits.h"
#include "topology/forwarding_table.h"

namespace ferry::internal {

struct SubtreeRule {
  const ForwardingTable* forwarding;
  bool alone = false;  // kFullmesh: each rank of another node is its own subtree
};

class Subtrees {
 public:
  struct Subtree {
    int next_hop;  // index of the mate in ForwardingTable::mates; -1: the node of this rank
    // The level of that mate. The node of this rank has a level that is inside all others.
    int level;
    std::span<const std::int64_t> items;
  };

  // Divides the items [first, first + count). There are at most kMostItems. `rank_of` returns the
  // rank to which an item goes, or -1 if it goes to none. Subtrees are sorted by their lowest rank;
  // the items of a subtree keep their order.
  template <typename RankOf>
  Subtrees(const SubtreeRule& rule, std::int64_t first, int count, const RankOf& rank_of)
      : forwarding_(rule.forwarding) {
    for (std::int64_t item = first; item < first + count; ++item) {
      const int rank = rank_of(item);
      if (rank < 0) continue;
      const bool alone = rule.alone && forwarding_->next_hop[rank] >= 0;
      insert(alone ? rank : forwarding_->subtree[rank], forwarding_->next_hop[rank], item);
    }
    divide();
  }

  int count() const noexcept { return num_subtrees_; }
  Subtree operator[](int i) const noexcept {
    const int begin = begin_[i], end = i + 1 < num_subtrees_ ? begin_[i + 1] : num_items_;
    const int next_hop = next_hop_[begin];
    return {next_hop, next_hop < 0 ? Topology::kMostLevels : forwarding_->mates[next_hop].level,
            std::span(items_).subspan(begin, static_cast<std::size_t>(end - begin))};
  }

  static constexpr int kMostItems = kMaxEntries * kMaxTpSize;

 private:
  void insert(int subtree, int next_hop, std::int64_t item) noexcept {
    int at = num_items_++;
    for (; at > 0 && subtree_[at - 1] > subtree; --at) {
      subtree_[at] = subtree_[at - 1];
      next_hop_[at] = next_hop_[at - 1];
      items_[at] = items_[at - 1];
    }
    subtree_[at] = subtree;
    next_hop_[at] = next_hop;
    items_[at] = item;
  }
  void divide() noexcept {
    for (int i = 0; i < num_items_; ++i) {
      if (i == 0 || subtree_[i] != subtree_[i - 1]) begin_[num_subtrees_++] = i;
    }
  }

  const ForwardingTable* forwarding_;
  int num_subtrees_ = 0, num_items_ = 0;
  std::array<int, kMostItems> begin_, subtree_, next_hop_;
  std::array<std::int64_t, kMostItems> items_;
};

}  // namespace ferry::internal
