#include "topology/subtrees.h"

namespace ferry::internal {

void Subtrees::insert(int subtree, int next_hop, std::int64_t item) noexcept {
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

void Subtrees::divide() noexcept {
  for (int i = 0; i < num_items_; ++i) {
    if (i == 0 || subtree_[i] != subtree_[i - 1]) begin_[num_subtrees_++] = i;
  }
}

}  // namespace ferry::internal
