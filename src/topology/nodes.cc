#include "topology/nodes.h"

#include <algorithm>

namespace ferry::internal {

int mate_at(std::span<const int> ranks, int position) noexcept {
  return ranks.empty() ? -1 : ranks[position % ranks.size()];
}

Nodes::Nodes(std::vector<int> node_of, int rank)
    : node_of_(std::move(node_of)), mine_(node_of_[rank]) {
  for (std::size_t peer = 0; peer < node_of_.size(); ++peer) {
    const std::size_t node = node_of_[peer];
    if (node >= ranks_.size()) ranks_.resize(node + 1);
    position_.push_back(static_cast<int>(ranks_[node].size()));
    ranks_[node].push_back(static_cast<int>(peer));
  }
}

int Nodes::most_ranks() const noexcept {
  std::size_t most = 0;
  for (const std::vector<int>& ranks : ranks_) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

}  // namespace ferry::internal
