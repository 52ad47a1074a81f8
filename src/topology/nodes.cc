#include "topology/nodes.h"

#include <algorithm>

namespace ferry::internal {

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

Border::Border(const Nodes& nodes, int rank, const std::vector<bool>& taking_part)
    : is_mate(nodes.num_ranks()), is_client(nodes.num_ranks()) {
  std::vector<std::vector<int>> parts(nodes.count());  // of each node, who takes part
  std::vector<int> place(nodes.num_ranks());
  for (int peer = 0; peer < nodes.num_ranks(); ++peer) {
    std::vector<int>& part = parts[nodes.node_of(peer)];
    place[peer] = taking_part[peer] ? static_cast<int>(part.size()) : nodes.position(peer);
    if (taking_part[peer]) part.push_back(peer);
  }
  // The same place, counted round where nodes are uneven.
  const auto mate = [&](int node, int peer) {
    return parts[node][place[peer] % parts[node].size()];
  };
  for (int node = 0; node < nodes.count(); ++node) {
    if (node == nodes.mine() || parts[node].empty()) continue;
    mates.push_back({node, mate(node, rank)});
    is_mate[mates.back().rank] = true;
  }
  for (int peer = 0; peer < nodes.num_ranks(); ++peer) {
    const bool alone = nodes.here(peer) || parts[nodes.mine()].empty();
    via.push_back(alone ? peer : mate(nodes.mine(), peer));
    is_client[peer] = taking_part[peer] && !nodes.here(peer) && via[peer] == rank;
  }
}

}  // namespace ferry::internal
