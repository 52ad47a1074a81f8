// ForwardingTable: the table of every rank is consistent with the tables of all other ranks, on
// trees of every kind.
#include "topology/forwarding_table.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "topology/mate.h"

namespace ferry::internal {
namespace {

using testing::ElementsAre;

constexpr const char* kTrees[] = {
    "rank:3",
    "host:2,rank:4",
    "host:2,rank:3+5",
    "host:3,rank:1+2+3",
    "rack:2,host:2,rank:4",
    "rack:2,host:2+1,rank:1+2+3",
    "rack:1,host:3,rank:2",
    "row:2,rack:1+2,host:2+1+2,rank:1+3+2+1+2",
    "machine:2,host:4,numa:2,rank:2",
    "host:2@1xor,rank:4",
    "rack:2@5xor,host:2@3xor,rank:4",
    "machine:2,host:2@pairs0-6+1-4+2-7+3-5,rank:4",
    "host:3@pairs0-2+0-4+2-5+1-3+1-5+3-4,rank:2",
};

constexpr const char* kTreesOfTwoWays[] = {
    "host:2@also1xor,rank:4",
    "host:3@1xor@also0xor,rank:2",
    "host:2@also1xor,rank:2+4",
    "rack:2@5xor@also3xor,host:2@3xor,rank:4",
    "rack:3@also1xor,host:1+2+1,rank:2+3+1+4",
    "machine:2@pairs0-6+1-4+2-7+3-5@also1xor,host:2,rank:2",
};

// The tables of all ranks.
std::vector<ForwardingTable> tables_of(const Topology& topology, const std::vector<bool>& active,
                                       bool flat, bool second_way = false) {
  std::vector<ForwardingTable> tables;
  for (int rank = 0; rank < topology.num_ranks(); ++rank)
    tables.emplace_back(topology, rank, active, flat, second_way);
  return tables;
}

std::vector<bool> all_of(const Topology& topology) {
  return std::vector<bool>(topology.num_ranks(), true);
}

// Every second and third rank.
std::vector<bool> some_of(const Topology& topology) {
  std::vector<bool> some;
  for (int rank = 0; rank < topology.num_ranks(); ++rank)
    some.push_back(rank % 2 == 1 || rank % 3 == 0);
  return some;
}

// The number of times that each rank gets a message of `rank` over `level`, and forwards it.
void pass_on(const std::vector<ForwardingTable>& tables, int rank, int level,
             std::map<int, int>& got) {
  ++got[rank];
  for (const ForwardingTable::Mate& mate : tables[rank].mates)
    if (mate.level > level) pass_on(tables, mate.rank, mate.level, got);
}

void expect_that_each_node_hears_once(const Topology& topology, const std::vector<bool>& active,
                                      bool flat, bool second_way = false) {
  const std::vector<ForwardingTable> tables = tables_of(topology, active, flat, second_way);
  std::set<int> active_nodes;
  for (int rank = 0; rank < topology.num_ranks(); ++rank)
    if (active[rank]) active_nodes.insert(topology.node_of(rank));
  for (int source = 0; source < topology.num_ranks(); ++source) {
    if (!active[source]) continue;
    std::map<int, int> got;  // by rank
    pass_on(tables, source, -1, got);
    std::set<int> nodes;
    for (const auto& [rank, count] : got) {
      EXPECT_EQ(count, 1) << rank;
      EXPECT_TRUE(nodes.insert(topology.node_of(rank)).second) << rank;
      EXPECT_EQ(tables[rank].is_served[source], rank != source);
    }
    EXPECT_EQ(nodes, active_nodes);
    for (int rank = 0; rank < topology.num_ranks(); ++rank)
      EXPECT_EQ(tables[rank].is_served[source], got.count(rank) > 0 && rank != source);
  }
}

TEST(ForwardingTable, EachNodeHearsOfEachRankOnceAndThereOneRankServesIt) {
  for (const char* text : kTrees) {
    const Topology topology = Topology::parse(text);
    if (topology.num_nodes() == 1) continue;
    SCOPED_TRACE(text);
    expect_that_each_node_hears_once(topology, all_of(topology), /*flat=*/false);
    expect_that_each_node_hears_once(topology, all_of(topology), /*flat=*/true);
    expect_that_each_node_hears_once(topology, some_of(topology), /*flat=*/true);
  }
}

TEST(ForwardingTable, SoItIsOverEachOfTwoWays) {
  for (const char* text : kTreesOfTwoWays) {
    const Topology topology = Topology::parse(text);
    SCOPED_TRACE(text);
    for (const bool second_way : {false, true})
      expect_that_each_node_hears_once(topology, all_of(topology), /*flat=*/false, second_way);
  }
}

// Hop by hop a row comes to the node of its destination, with every hop at a level further in. The
// flags of the destination return to this node over the hops of last_hop.
TEST(ForwardingTable, NextHopsLeadThereAndLastHopsLeadBack) {
  std::vector<std::pair<const char*, bool>> trees;  // true: over the second way
  for (const char* text : kTrees) trees.emplace_back(text, false);
  for (const char* text : kTreesOfTwoWays) trees.emplace_back(text, true);
  for (const auto& [text, second_way] : trees) {
    const Topology topology = Topology::parse(text);
    if (topology.num_nodes() == 1) continue;
    SCOPED_TRACE(text);
    const std::vector<ForwardingTable> tables =
        tables_of(topology, all_of(topology), false, second_way);
    for (int source = 0; source < topology.num_ranks(); ++source) {
      for (int rank = 0; rank < topology.num_ranks(); ++rank) {
        int at = source, level = -1;
        while (tables[at].next_hop[rank] >= 0) {
          const ForwardingTable::Mate mate = tables[at].mates[tables[at].next_hop[rank]];
          EXPECT_GT(mate.level, level);
          at = mate.rank, level = mate.level;
        }
        EXPECT_EQ(topology.node_of(at), topology.node_of(rank));
        int writer = rank;
        while (tables[source].last_hop[writer] != writer) writer = tables[source].last_hop[writer];
        EXPECT_EQ(topology.node_of(writer), topology.node_of(source));
        EXPECT_EQ(tables[writer].is_served[rank], writer != rank);
      }
    }
  }
}

TEST(ForwardingTable, FlatMatesAreThoseOfTheTopology) {
  for (const char* text : kTrees) {
    const Topology topology = Topology::parse(text);
    if (topology.num_nodes() == 1) continue;
    const std::vector<ForwardingTable> tables = tables_of(topology, all_of(topology), true);
    for (int rank = 0; rank < topology.num_ranks(); ++rank) {
      const auto& mates = tables[rank].mates;
      ASSERT_EQ(mates.size(), topology.num_nodes() - 1u);
      for (const auto& [level, mate] : mates) {
        EXPECT_EQ(level, topology.find_level(Topology::kHost));
        EXPECT_EQ(topology.mate(rank, topology.node_of(mate)), mate);
      }
    }
  }
}

// The partly linked machine: 0-5, 1-4, 2-7, 3-6 inside; outside 0-8, 4-12, its second way 0-12,
// 4-8.
TEST(ForwardingTable, MatesByLinks) {
  const Topology topology = Topology::parse("machine:2@also4xor,host:2@1xor,rank:4");
  const int mates[5][3] = {{8, 12, 5}, {9, 13, 4}, {10, 14, 7}, {11, 15, 6}, {12, 8, 1}};
  for (const int way : {0, 1}) {
    const std::vector<ForwardingTable> tables =
        tables_of(topology, all_of(topology), /*flat=*/false, /*second_way=*/way == 1);
    for (int rank = 0; rank < 5; ++rank) {
      ASSERT_EQ(tables[rank].mates.size(), 2u);
      EXPECT_EQ(tables[rank].mates[0].rank, mates[rank][way]);
      EXPECT_EQ(tables[rank].mates[1].rank, mates[rank][2]);
    }
  }
}

TEST(SecondWay, GetsItsShareOfEveryRunOfTokens) {
  for (const double share : {0.5, 0.25, 0.75, 1.0 / 3}) {
    int taken = 0;
    for (int token = 0; token < 1200; ++token) {
      taken += takes_second_way(token, share) ? 1 : 0;
      EXPECT_NEAR(taken, share * (token + 1), 1) << share << " " << token;
    }
  }
}

// Each pair of groups has a permutation of its own. Where some ranks take part, mates of which both
// take part stay mates, and the other ranks find theirs by position.
TEST(ForwardingTable, MatesByPairs) {
  const Topology topology = Topology::parse("host:3@pairs0-2+0-4+2-5+1-3+1-5+3-4,rank:2");
  const std::vector<ForwardingTable> tables = tables_of(topology, all_of(topology), false);
  const int mates[6][2] = {{2, 4}, {3, 5}, {0, 5}, {1, 4}, {0, 3}, {1, 2}};
  for (int rank = 0; rank < 6; ++rank) {
    ASSERT_EQ(tables[rank].mates.size(), 2u);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(tables[rank].mates[i].rank, mates[rank][i]);
  }
  const std::vector<bool> some = {true, true, false, true, true, false};
  const ForwardingTable table(topology, 1, some, /*flat=*/true);
  EXPECT_EQ(table.mates[0].rank, 3);
  EXPECT_EQ(table.mates[1].rank, 4);  // 5 takes no part
}

// The example of docs/topology.md.
TEST(ForwardingTable, OfTheRacksOfTheDocuments) {
  const Topology topology = Topology::parse("rack:2,host:2,rank:4");
  const ForwardingTable table(topology, 6, all_of(topology), /*flat=*/false);
  ASSERT_EQ(table.mates.size(), 2u);
  EXPECT_EQ(table.mates[0].rank, 14);
  EXPECT_EQ(table.mates[1].rank, 2);
  EXPECT_EQ(table.outermost, 0);
  EXPECT_EQ(table.next_hop[10], 0);  // through rank 14
  EXPECT_EQ(table.subtree[10], 8);
  EXPECT_EQ(table.subtree[5], 4);
  std::vector<int> served;
  for (int rank = 0; rank < topology.num_ranks(); ++rank)
    if (table.is_served[rank]) served.push_back(rank);
  EXPECT_THAT(served, ElementsAre(2, 10, 14));
  EXPECT_EQ(table.last_hop[10], 2);  // the mate of 10 in rack 0, which forwards to 6
}

// Ranks are dealt to the nodes in turn. Positions are counted among the ranks that take part.
TEST(ForwardingTable, OfSomeRanksInAnyOrder) {
  const Topology topology = Topology::from_nodes({0, 1, 0, 1, 0, 1});
  const ForwardingTable table(topology, 4, {false, true, true, false, true, true}, /*flat=*/true);
  ASSERT_EQ(table.mates.size(), 1u);
  EXPECT_EQ(table.mates[0].rank, 5);  // 4 is at position 1 of {2, 4}; there {1, 5} take part
  EXPECT_THAT(table.last_hop, ElementsAre(0, 2, 2, 4, 4, 4));
  EXPECT_THAT(table.next_hop, ElementsAre(-1, 0, -1, 0, -1, 0));
  const ForwardingTable alone(topology, 4, {false, false, true, false, true, false}, true);
  EXPECT_TRUE(alone.mates.empty());
  EXPECT_EQ(alone.outermost, 0);
  EXPECT_THAT(alone.next_hop, ElementsAre(-1, -1, -1, -1, -1, -1));
}

}  // namespace
}  // namespace ferry::internal
