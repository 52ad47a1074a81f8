// Topology: groups, nodes, mates and links of a tree, and a tree from the nodes of a rendezvous.
#include "ferry/topology.h"

#include <gmock/gmock.h>

#include "ferry/status.h"

namespace ferry {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Topology, GroupsHoldTheirRanks) {
  const Topology topology = Topology::parse("rack:2,host:2+1,rank:1+2+3");
  EXPECT_EQ(topology.num_ranks(), 6);
  EXPECT_THAT(topology.members(0, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(topology.members(1, 0), ElementsAre(3, 4, 5));
  EXPECT_THAT(topology.members(1, 1), ElementsAre(1, 2));
  EXPECT_THAT(topology.members(4, 2), ElementsAre(4));
  for (int level = 0; level < topology.num_levels(); ++level) {
    int seen = 0;
    for (int group = 0; group < topology.level(level).num_groups(); ++group) {
      for (const int rank : topology.members(group, level)) {
        EXPECT_EQ(topology.group_of(rank, level), group);
        ++seen;
      }
    }
    EXPECT_EQ(seen, topology.num_ranks());
  }
}

TEST(Topology, NodesAreTheGroupsOfLevelHost) {
  const Topology racks = Topology::parse("rack:2,host:2,numa:2,rank:2");
  EXPECT_EQ(racks.num_nodes(), 4);
  EXPECT_EQ(racks.node_of(11), 2);
  EXPECT_THAT(racks.node_ranks(3), ElementsAre(12, 13, 14, 15));
  const Topology one = Topology::parse("numa:2,rank:2");
  EXPECT_EQ(one.num_nodes(), 1);
  EXPECT_THAT(one.nodes(), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(one.node_ranks(0), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(one.mate(3, 0), 3);
}

TEST(Topology, MatesHaveTheSamePositionCountedRound) {
  const Topology even = Topology::parse("host:3,rank:4");
  EXPECT_EQ(even.mate(5, 0), 1);
  EXPECT_EQ(even.mate(5, 1), 5);
  EXPECT_EQ(even.mate(5, 2), 9);
  const Topology uneven = Topology::parse("host:2,rank:3+5");
  std::vector<int> mates;
  for (int rank = 0; rank < 8; ++rank) mates.push_back(uneven.mate(rank, 1 - uneven.node_of(rank)));
  EXPECT_THAT(mates, ElementsAre(3, 4, 5, 0, 1, 2, 0, 1));
}

TEST(Topology, FromNodesTakesRanksInAnyOrder) {
  const Topology dealt = Topology::from_nodes({0, 1, 0, 1, 0});
  EXPECT_EQ(dealt.to_text(), "host:2,rank:3+2");
  EXPECT_THAT(dealt.nodes(), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(dealt.node_ranks(0), ElementsAre(0, 2, 4));
  EXPECT_THAT(dealt.members(1, 0), ElementsAre(1, 3));
  EXPECT_EQ(dealt.mate(2, 1), 3);
  EXPECT_EQ(dealt.mate(4, 1), 1);
  EXPECT_EQ(dealt.mate(3, 0), 2);
  EXPECT_FALSE(dealt == Topology::parse(dealt.to_text()));
  EXPECT_EQ(Topology::from_nodes({0, 0, 1, 1, 1}), Topology::parse("host:2,rank:2+3"));
}

TEST(Topology, FromNodesRefusesOtherNumbers) {
  EXPECT_THAT([] { Topology::from_nodes({}); }, ThrowsMessage<Error>(HasSubstr("no ranks")));
  EXPECT_THAT(
      [] {
        Topology::from_nodes({0, 2});
      },
      ThrowsMessage<Error>(HasSubstr("rank 1 is on node 2")));
  EXPECT_THAT([] { Topology::from_nodes({-1}); },
              ThrowsMessage<Error>(HasSubstr("rank 0 is on node -1")));
}

TEST(Topology, RanksShareLinksOutInRuns) {
  const Topology rails = Topology::parse("host:2@8links,rank:8");
  EXPECT_EQ(rails.link_of(3, 0), 3);
  EXPECT_EQ(rails.link_of(11, 0), 3);
  const Topology pairs = Topology::parse("host:2@4links,rank:8");
  EXPECT_EQ(pairs.link_of(1, 0), 0);
  EXPECT_EQ(pairs.link_of(2, 0), 1);
  EXPECT_EQ(pairs.link_of(15, 0), 3);
  const Topology many = Topology::parse("host:2@8links,rank:2");
  EXPECT_EQ(many.link_of(1, 0), 4);
}

TEST(Topology, RefusesWhatIsOutside) {
  const Topology topology = Topology::parse("host:2,rank:2");
  EXPECT_THAT([&] { topology.node_of(4); },
              ThrowsMessage<Error>(HasSubstr("rank 4 is not in [0, 4)")));
  EXPECT_THAT([&] { topology.mate(-1, 0); }, ThrowsMessage<Error>(HasSubstr("rank -1")));
  EXPECT_THAT([&] { topology.mate(0, 2); }, ThrowsMessage<Error>(HasSubstr("node 2")));
  EXPECT_THAT([&] { topology.members(2, 0); }, ThrowsMessage<Error>(HasSubstr("group 2")));
  EXPECT_THAT([&] { topology.group_of(0, 2); }, ThrowsMessage<Error>(HasSubstr("level 2")));
  EXPECT_EQ(topology.find_level("numa"), -1);
}

}  // namespace
}  // namespace ferry
