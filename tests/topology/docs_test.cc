// The numbers of docs/topology.md are those of the code.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "traffic/choose.h"
#include "traffic/ranking.h"
#include "traffic/tree_walk.h"

namespace ferry::internal {
namespace {

std::ifstream page() { return std::ifstream(FERRY_DOCS "/topology.md"); }

// Finds the text regardless of its line breaks.
void expect_on_page(const std::string& words) {
  std::ifstream file = page();
  std::string text, word;
  while (file >> word) text += word + " ";
  EXPECT_NE(text.find(words), std::string::npos) << words;
}

// | `topology` | K of E | level | fullmesh | hierarchical | allgather |
struct TableRow {
  std::string topology;
  int top_k, experts;
  std::string level;
  std::vector<std::string> bytes;  // by algorithm
};

std::optional<TableRow> table_row(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream text(line);
  for (std::string cell; std::getline(text, cell, '|');)
    if (cell.size() > 2) cells.push_back(cell.substr(1, cell.size() - 2));
  TableRow row{};
  if (cells.size() != 6 || cells[0].front() != '`' ||
      std::sscanf(cells[1].c_str(), "%d of %d", &row.top_k, &row.experts) != 2)
    return std::nullopt;
  row.topology = cells[0].substr(1, cells[0].size() - 2);
  row.level = cells[2];
  row.bytes = {cells[3], cells[4], cells[5]};
  return row;
}

ExchangeConfig shape(int top_k, int experts) {
  return {.max_tokens = 128, .hidden = 7168, .num_experts = experts, .top_k = top_k};
}

Traffic traffic(int num_ranks, int experts = 256) {
  return traffic_of(shape(8, experts), num_ranks);
}

TEST(Docs, TableOfBytes) {
  std::ifstream file = page();
  std::set<std::string> seen;
  for (std::string line; std::getline(file, line);) {
    const std::optional<TableRow> row = table_row(line);
    if (!row) continue;
    const Topology topology = Topology::parse(row->topology);
    const int level = topology.find_level(row->level);
    ASSERT_GE(level, 0) << line;
    const Traffic traffic = traffic_of(shape(row->top_k, row->experts), topology.num_ranks());
    std::vector<std::string> bytes;
    for (const Algorithm algorithm :
         {Algorithm::kFullmesh, Algorithm::kHierarchical, Algorithm::kAllgather}) {
      const LinkBytes link = level_bytes(topology, traffic, algorithm)[level];
      bytes.push_back(fmt::format("{} + {}", bytes_text(link.dispatch), bytes_text(link.combine)));
    }
    EXPECT_EQ(bytes, row->bytes) << line;
    seen.insert(row->topology + " " + row->level);
  }
  for (const char* shown :
       {"host:2,rank:4 host", "host:2,rank:3+5 host", "gpu8:4 host", "rails8x8 host",
        "dies16:2 machine", "dies16:2 host", "superpod384 server"}) {
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

TEST(Docs, ExampleWithRacks) {
  const Traffic racks = traffic(16);
  const double row = 128 * 14336, rack = touch_probability(racks, 128);
  const double host = touch_probability(racks, 64), sent = 4 * rack + 8 * host;
  expect_on_page(fmt::format("P(64) = {:.4f}", host));
  expect_on_page(fmt::format("8 * P(128) = {:.3f} copies", 8 * rack));
  expect_on_page(fmt::format("link of their rack, {}", bytes_text(8 * row * rack)));
  expect_on_page(fmt::format("{:.2f} copies, {}", sent, bytes_text(row * sent)));
  expect_on_page(
      fmt::format("4 * 3 * P(64) = {:.2f} copies, {}", 12 * host, bytes_text(12 * row * host)));
  expect_on_page(fmt::format("8 * 2 * P(64) = {:.2f}", 16 * host));
  expect_on_page(fmt::format("{} instead of {}", bytes_text(16 * row * host),
                             fmt::format("{:.1f}", 8 * row * rack / 1e6)));
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
