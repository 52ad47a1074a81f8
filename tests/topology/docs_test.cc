// The numbers of docs/topology.md are those of the code.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "topology/choose.h"

namespace ferry::internal {
namespace {

using testing::ElementsAre;

std::string page() {
  std::ifstream file(FERRY_DOCS "/topology.md");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Wherever lines are broken.
void expect_on_page(const std::string& words) {
  const std::string text = std::regex_replace(page(), std::regex("\\s+"), " ");
  EXPECT_NE(text.find(words), std::string::npos) << words;
}

ExchangeConfig shape(int top_k, int experts) {
  return {.max_tokens = 128, .hidden = 7168, .num_experts = experts, .top_k = top_k};
}

Traffic traffic(int num_ranks, int experts = 256) {
  return traffic_of(shape(8, experts), num_ranks);
}

// | `topology` | K of E | level | fullmesh | hierarchical | allgather |
TEST(Docs, TableOfBytes) {
  const std::regex row(
      R"(\| `(\S+)` \| (\d+) of (\d+) \| (\w+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|)");
  const std::string text = page();
  std::set<std::string> seen;
  for (std::sregex_iterator match(text.begin(), text.end(), row), end; match != end; ++match) {
    const std::smatch& cells = *match;
    const Topology topology = Topology::parse(cells.str(1));
    const int level = topology.find_level(cells.str(4));
    ASSERT_GE(level, 0) << cells.str();
    const ExchangeConfig config = shape(std::stoi(cells[2]), std::stoi(cells[3]));
    std::vector<std::string> bytes;
    for (const Algorithm algorithm :
         {Algorithm::kFullmesh, Algorithm::kHierarchical, Algorithm::kAllgather}) {
      const LinkBytes link =
          level_bytes(topology, traffic_of(config, topology.num_ranks()), algorithm)[level];
      bytes.push_back(fmt::format("{} + {}", bytes_text(link.dispatch), bytes_text(link.combine)));
    }
    EXPECT_THAT(bytes, ElementsAre(cells.str(5), cells.str(6), cells.str(7))) << cells.str();
    seen.insert(cells.str(1) + " " + cells.str(4));
  }
  for (const char* shown : {"host:2,rank:4 host", "host:2,rank:3+5 host", "gpu8:4 host",
                            "rails8x8 host", "dies16:2 vnode", "superpod384 server"}) {
    EXPECT_EQ(seen.count(shown), 1U) << shown;
  }
}

TEST(Docs, ExampleByHand) {
  const Traffic pair = traffic(8);
  const double row = 128 * 14336, node = touch_probability(pair, 128);
  const double rank = touch_probability(pair, 32);
  expect_on_page(fmt::format("P(128) = {:.4f}, P(32) = {:.4f}", node, rank));
  expect_on_page(fmt::format("4 * 128 * 14336 = {} times {:.4f} = {}", bytes_text(4 * row), node,
                             bytes_text(4 * row * node)));
  expect_on_page(fmt::format("times 4 * {:.4f} = {:.3f} distinct ranks = {}", rank, 4 * rank,
                             bytes_text(4 * row * 4 * rank)));
}

TEST(Docs, NodesAndRanksTouched) {
  const double all = 3 * touch_probability(traffic(8), 64);
  const double limited = 1.5 * touch_probability(traffic(4, 128), 64);
  expect_on_page(fmt::format("3 * P(64) = {:.3f}", all));
  expect_on_page(fmt::format("1.5 * P(64 of 128) = {:.3f} on average, {:.2f} of that", limited,
                             limited / all));
  expect_on_page(fmt::format("{:.3f} of the 7 other nodes, and {:.3f} ranks",
                             7 * touch_probability(traffic(64), 32),
                             56 * touch_probability(traffic(64), 4)));
}

TEST(Docs, ReasonOfAuto) {
  const Topology topology = Topology::parse("host:4@0.125GB/s@50us,rank:2");
  expect_on_page("auto is hierarchical " + choose_algorithm(topology, traffic(8)).reason);
}

}  // namespace
}  // namespace ferry::internal
