// The rule of Algorithm::kAuto and its reasons.
#include "traffic/choose.h"

#include <gmock/gmock.h>

#include "traffic/ranking.h"
#include "traffic/tree_walk.h"

namespace ferry::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;

AlgorithmChoice choose(const char* text, const ExchangeConfig& config) {
  const Topology topology = Topology::parse(text);
  return choose_algorithm(topology, traffic_of(config, topology.num_ranks()));
}

const ExchangeConfig kShape = {.max_tokens = 128, .hidden = 7168, .num_experts = 256, .top_k = 8};

TEST(Choose, OneNodeHasNothingToCross) {
  for (const char* text : {"rank:8", "host:1,numa:2,rank:4", "superpod384"}) {
    ExchangeConfig config = kShape;
    config.num_experts = 384;
    EXPECT_EQ(choose(text, config).algorithm, Algorithm::kFullmesh);
    EXPECT_EQ(choose(text, config).reason, "one node: nothing crosses");
  }
}

TEST(Choose, ComparesBytesWhereNoBandwidthIsKnown) {
  const AlgorithmChoice choice = choose("host:2@5us,rank:4", kShape);
  EXPECT_EQ(choice.algorithm, Algorithm::kHierarchical);
  EXPECT_EQ(choice.reason,
            "2 nodes, routing uniform: hierarchical: no rate is known; the busiest link of a host "
            "gets 14.6 MB, 14.7 MB with allgather, 38.9 MB with fullmesh");
}

TEST(Choose, ComparesTimesWhereItIs) {
  const AlgorithmChoice choice = choose("host:4@0.125GB/s@5us,rank:2", kShape);
  EXPECT_EQ(choice.algorithm, Algorithm::kHierarchical);
  EXPECT_THAT(
      choice.reason,
      AllOf(HasSubstr("4 nodes"),
            HasSubstr("host limits it, with 9.95 MB in dispatch and 9.95 MB in combine"),
            HasSubstr("at 0.125 GB/s; it takes 159 ms, allgather 168 ms, fullmesh 233 ms")));
}

TEST(Choose, EqualCostsGoToHierarchical) {
  // One rank on each node; one expert for each token; no tokens at all.
  EXPECT_EQ(choose("host:8,rank:1", kShape).algorithm, Algorithm::kHierarchical);
  ExchangeConfig one = kShape;
  one.top_k = 1;
  EXPECT_EQ(choose("host:3,rank:3+2+3", one).algorithm, Algorithm::kHierarchical);
  ExchangeConfig none = kShape;
  none.max_tokens = 0;
  EXPECT_EQ(choose("host:2,rank:4", none).algorithm, Algorithm::kHierarchical);
}

TEST(Choose, SlowRacksAndLatenciesCount) {
  const Topology topology = Topology::parse("rack:2@1GB/s@10us,host:2@100GB/s,rank:4");
  const Traffic small = traffic_of({.max_tokens = 1, .hidden = 512, .num_experts = 64, .top_k = 4},
                                   topology.num_ranks());
  const double bytes = level_bytes(topology, small, Algorithm::kHierarchical)[0].pair();
  EXPECT_LT(bytes, 40e3);
  EXPECT_THAT(choose_algorithm(topology, small).reason, HasSubstr(time_text(20 + bytes / 1e3)));
}

// Two racks of two hosts: a message that a mate forwards arrives later by the latency of a host.
TEST(Choose, LatenciesAddUpWhereMatesSendOn) {
  const Topology topology = Topology::parse("rack:2@1000GB/s@10us,host:2@1000GB/s@4us,rank:4");
  ExchangeConfig config = kShape;
  config.max_tokens = 1, config.hidden = 16;
  const AlgorithmChoice choice = choose_algorithm(topology, traffic_of(config, 16));
  EXPECT_EQ(choice.algorithm, Algorithm::kFullmesh);
  EXPECT_THAT(choice.reason, HasSubstr("takes 20 us, hierarchical 28 us, allgather 28 us"));
}

// With 64 hosts in eight racks, a host sends less with fullmesh, and a rack with hierarchical.
TEST(Choose, ComparesBytesOfTheOutermostLevel) {
  ExchangeConfig config = kShape;
  config.num_experts = 512;
  const Topology topology = Topology::parse("rack:8,host:8,rank:8");
  const Traffic traffic = traffic_of(config, topology.num_ranks());
  EXPECT_GT(level_bytes(topology, traffic, Algorithm::kHierarchical)[1].pair(),
            level_bytes(topology, traffic, Algorithm::kFullmesh)[1].pair());
  EXPECT_EQ(choose_algorithm(topology, traffic).algorithm, Algorithm::kHierarchical);
  EXPECT_THAT(choose("rack:8,host:8,rank:8", config).reason,
              HasSubstr("64 nodes, routing uniform: hierarchical: no rate is known; the busiest "
                        "link of a rack gets"));
  EXPECT_THAT(choose("machine:1,host:4,rank:4", kShape).reason,
              HasSubstr("the busiest link of a host"));
}

// Slow hosts under fast racks: a host sends less with fullmesh (docs/topology.md).
TEST(Choose, FullmeshWhereLinksOfHostsAreTheSlowOnes) {
  ExchangeConfig config = kShape;
  config.num_experts = 512;
  EXPECT_EQ(choose("rack:8@100GB/s,host:8@1GB/s,rank:8", config).algorithm, Algorithm::kFullmesh);
}

TEST(Choose, ManyRanksThatDiffer) {
  ExchangeConfig config = kShape;
  config.num_experts = 999;
  EXPECT_EQ(choose("host:300@1GB/s,rank:8", config).algorithm, Algorithm::kHierarchical);
}

TEST(Choose, NamesAndUnits) {
  EXPECT_STREQ(algorithm_name(Algorithm::kAllgather), "allgather");
  EXPECT_STREQ(algorithm_name(Algorithm::kAuto), "auto");
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(14336), "14.3 KB");
  EXPECT_EQ(bytes_text(999600), "1 MB");
  EXPECT_EQ(time_text(27.54), "27.5 us");
  EXPECT_EQ(time_text(2.5e9), "2.5 ks");
}

}  // namespace
}  // namespace ferry::internal
