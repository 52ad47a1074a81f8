// Splits the ranks of a test into nodes.
#include "nodes.h"

#include <algorithm>
#include <cstdlib>

#include "ferry/topology.h"

namespace ferry::test {

bool Nodes::several() const { return of_rank.front() != of_rank.back(); }

void Nodes::place(int rank, internal::RankInput& input) const {
  input.node = of_rank[rank];
  if (!outer.empty()) input.outer = outer[rank];
}

Nodes nodes_of(const std::string& text) {
  const Topology topology = Topology::parse(text);
  Nodes nodes{text, topology.nodes()};
  for (int rank = 0; rank < topology.num_ranks(); ++rank) {
    std::vector<int>& groups = nodes.outer.emplace_back();
    for (int level = 0; level < topology.find_level(Topology::kHost); ++level)
      groups.push_back(topology.group_of(rank, level));
  }
  return nodes;
}

Nodes nodes_of_sizes(const std::vector<int>& sizes) {
  std::string fanout;
  for (const int size : sizes) fanout += (fanout.empty() ? "" : "+") + std::to_string(size);
  return nodes_of("host:" + std::to_string(sizes.size()) + ",rank:" + fanout);
}

std::vector<Nodes> every_shape() {
  return {nodes_of("host:2,rank:1"),
          nodes_of("host:2,rank:4"),
          nodes_of("host:4,rank:2"),
          nodes_of("host:2,numa:2,rank:2"),
          nodes_of("numa:2,rank:2"),
          nodes_of_sizes({1, 3}),
          nodes_of_sizes({3, 5}),
          nodes_of_sizes({2, 1, 4}),
          nodes_of("rack:2,host:2,rank:2"),
          nodes_of("rack:3,host:1+3+2,rank:2+1+2+1+1+1"),
          nodes_of("zone:2,rack:2,host:1+2+1+1,rank:2+1+1+2+1")};
}

Nodes test_nodes(int num_ranks) {
  const char* const text = std::getenv("FERRY_TEST_NODES");
  const std::string name = text == nullptr ? "" : text;
  if ((name == "racks" || name == "inner") && num_ranks > 2) {
    const int fewer = num_ranks / 2, more = num_ranks - fewer;
    return nodes_of("rack:2,host:" + std::to_string(name == "racks" ? fewer : more) + "+" +
                    std::to_string(name == "racks" ? more : fewer) + ",rank:1");
  }
  const int num_nodes = text == nullptr ? 1 : std::clamp(std::atoi(text), 1, num_ranks);
  if (num_nodes == 1) return {"", std::vector<int>(num_ranks, 0), {}};
  std::vector<int> sizes;
  for (int left = num_nodes; left > 0; --left) {
    sizes.push_back(num_ranks / left);
    num_ranks -= sizes.back();
  }
  return nodes_of_sizes(sizes);
}

}  // namespace ferry::test
