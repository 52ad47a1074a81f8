// Splitting the ranks of a test in nodes.
#include "nodes.h"

#include <algorithm>
#include <cstdlib>

namespace ferry::test {

bool Nodes::several() const { return of_rank.front() != of_rank.back(); }

Nodes nodes_of_sizes(const std::vector<int>& sizes) {
  Nodes nodes;
  std::string fanout;
  for (std::size_t node = 0; node < sizes.size(); ++node) {
    fanout += (node == 0 ? "" : "+") + std::to_string(sizes[node]);
    nodes.of_rank.insert(nodes.of_rank.end(), sizes[node], static_cast<int>(node));
  }
  nodes.topology = "host:" + std::to_string(sizes.size()) + ",rank:" + fanout;
  return nodes;
}

std::vector<Nodes> every_shape() {
  return {{"host:2,rank:1", {0, 1}},
          {"host:2,rank:4", {0, 0, 0, 0, 1, 1, 1, 1}},
          {"host:4,rank:2", {0, 0, 1, 1, 2, 2, 3, 3}},
          {"host:2,numa:2,rank:2", {0, 0, 0, 0, 1, 1, 1, 1}},
          {"numa:2,rank:2", {0, 0, 0, 0}},
          nodes_of_sizes({1, 3}),
          nodes_of_sizes({3, 5}),
          nodes_of_sizes({2, 1, 4})};
}

Nodes test_nodes(int num_ranks) {
  const char* const text = std::getenv("FERRY_TEST_NODES");
  const int num_nodes = text == nullptr ? 1 : std::clamp(std::atoi(text), 1, num_ranks);
  if (num_nodes == 1) return {"", std::vector<int>(num_ranks, 0)};
  std::vector<int> sizes;
  for (int left = num_nodes; left > 0; --left) {
    sizes.push_back(num_ranks / left);
    num_ranks -= sizes.back();
  }
  return nodes_of_sizes(sizes);
}

}  // namespace ferry::test
