// The expected bytes of each level against a count over every possible choice of experts.
#include "topology/traffic.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

namespace ferry::internal {
namespace {

using testing::DoubleNear;

constexpr Algorithm kAlgorithms[] = {Algorithm::kFullmesh, Algorithm::kHierarchical,
                                     Algorithm::kAllgather};

// Walks tokens through a topology: every row that leaves one rank for another is put on every link
// between them.
class Walk {
 public:
  Walk(const Topology& topology, const Traffic& traffic, Algorithm algorithm)
      : topology_(topology), traffic_(traffic), algorithm_(algorithm) {
    for (int rank = 0; rank < topology.num_ranks(); ++rank)
      owner_.insert(owner_.end(), traffic.rank_experts[rank], rank);
  }

  // Every source sends `tokens` tokens, spread evenly over every choice of K of E experts.
  std::vector<LinkBytes> run() {
    std::vector<bool> chosen(owner_.size());
    std::fill_n(chosen.begin(), traffic_.top_k, true);
    std::vector<std::vector<int>> choices;
    do {
      choices.emplace_back();
      for (std::size_t expert = 0; expert < chosen.size(); ++expert)
        if (chosen[expert]) choices.back().push_back(owner_[expert]);
    } while (std::prev_permutation(chosen.begin(), chosen.end()));
    tokens_ = static_cast<double>(traffic_.tokens) / static_cast<double>(choices.size());
    for (const std::vector<int>& owners : choices) {
      for (int source = 0; source < topology_.num_ranks(); ++source) send(source, owners);
    }
    std::vector<LinkBytes> levels(topology_.num_levels());
    for (const auto& [link, bytes] : dispatch_) keep(levels[std::get<0>(link)].dispatch, bytes);
    for (const auto& [link, bytes] : combine_) keep(levels[std::get<0>(link)].combine, bytes);
    return levels;
  }

 private:
  using Direction = std::tuple<int, int, int, bool>;  // level, group, link, outwards
  using Bytes = std::map<Direction, double>;

  static void keep(double& most, double bytes) { most = std::max(most, bytes); }

  // On every link of the way: those of the groups that hold one end and not the other.
  void add(int from, int to, double bytes, Bytes& all) const {
    const bool network = topology_.node_of(from) != topology_.node_of(to);
    for (int level = 0; level < topology_.num_levels(); ++level) {
      const bool outside = level <= topology_.find_level(Topology::kHost);
      const int group = topology_.group_of(from, level), other = topology_.group_of(to, level);
      if (group == other || outside != network) continue;
      all[{level, group, topology_.link_of(from, level), true}] += bytes;
      all[{level, other, topology_.link_of(to, level), false}] += bytes;
    }
  }

  void send(int source, const std::vector<int>& owners) {
    for (int node = 0; node < topology_.num_nodes(); ++node) {
      std::vector<int> here;
      for (const int owner : owners)
        if (topology_.node_of(owner) == node) here.push_back(owner);
      const std::set<int> ranks(here.begin(), here.end());
      const std::vector<int> rows =
          traffic_.row_per_rank ? std::vector<int>(ranks.begin(), ranks.end()) : here;
      const int mate = topology_.mate(source, node);
      if (mate != source) cross(source, mate, ranks.size(), rows.size());
      for (const int owner : rows) {
        add(mate, owner, tokens_ * traffic_.row_bytes, dispatch_);
        add(owner, mate, tokens_ * traffic_.output_bytes, combine_);
      }
    }
  }

  void cross(int source, int mate, std::size_t ranks, std::size_t rows) {
    const double once = rows > 0 ? 1 : 0;
    const double copies = algorithm_ == Algorithm::kFullmesh ? static_cast<double>(ranks) : once;
    const double there = algorithm_ == Algorithm::kAllgather ? 1 : copies;
    const double back = traffic_.exact ? static_cast<double>(rows) * traffic_.output_bytes
                                       : copies * traffic_.sum_bytes;
    add(source, mate, tokens_ * there * traffic_.row_bytes, dispatch_);
    add(mate, source, tokens_ * back, combine_);
  }

  const Topology& topology_;
  const Traffic& traffic_;
  const Algorithm algorithm_;
  std::vector<int> owner_;  // [experts]
  double tokens_ = 0;
  Bytes dispatch_, combine_;
};

void compare(const Topology& topology, const Traffic& traffic) {
  for (const Algorithm algorithm : kAlgorithms) {
    const std::vector<LinkBytes> expected = Walk(topology, traffic, algorithm).run();
    const std::vector<LinkBytes> computed = level_bytes(topology, traffic, algorithm);
    ASSERT_EQ(computed.size(), expected.size());
    for (std::size_t level = 0; level < expected.size(); ++level) {
      const std::string what = topology.to_text() + " level " + std::to_string(level);
      EXPECT_THAT(computed[level].dispatch, DoubleNear(expected[level].dispatch, 1e-6)) << what;
      EXPECT_THAT(computed[level].combine, DoubleNear(expected[level].combine, 1e-6)) << what;
    }
  }
}

// Every rank with two experts, the last with none or one.
Traffic small_traffic(const Topology& topology, int last) {
  Traffic traffic;
  traffic.tokens = 5, traffic.top_k = topology.num_ranks() > 5 ? 2 : 3;
  traffic.rank_experts.assign(topology.num_ranks(), 2);
  traffic.rank_experts.back() = last;
  traffic.row_bytes = 7, traffic.output_bytes = 11, traffic.sum_bytes = 13;
  return traffic;
}

TEST(Traffic, EqualsTheCountOverAllChoices) {
  for (const char* text :
       {"rank:4", "host:1,numa:2,rank:2", "host:2,rank:2", "host:2,rank:1+3", "host:3,rank:1+2+3",
        "rack:2,host:2+1,numa:1+2+1,rank:2+1+1+2", "host:2@2links,vnode:2@2links,rank:2",
        "rack:2@3links,host:2@2links,rank:2+1+1+3", "host:2@2links,rank:2+5"}) {
    const Topology topology = Topology::parse(text);
    for (const int last : {0, 1}) {
      Traffic traffic = small_traffic(topology, last);
      compare(topology, traffic);
      traffic.row_per_rank = true;
      compare(topology, traffic);
      traffic.exact = true;
      compare(topology, traffic);
      traffic.row_per_rank = false;
      compare(topology, traffic);
    }
  }
}

TEST(Traffic, EqualsTheCountWhereRanksAreDealtOut) {
  const Topology topology = Topology::from_nodes({0, 1, 0, 1, 1, 0, 1});
  compare(topology, small_traffic(topology, 1));
}

// The figure of the design: 2 x 4 ranks, 8 of 256 experts.
TEST(Traffic, TokenReachesTwoAndAHalfRemoteRanks) {
  const Topology topology = Topology::parse("host:2,rank:4");
  Traffic traffic = traffic_of({.max_tokens = 1, .hidden = 1, .num_experts = 256, .top_k = 8}, 8);
  const double ranks = 4 * touch_probability(traffic, 32);
  EXPECT_NEAR(ranks, 2.65, 0.01);
  EXPECT_NEAR(level_bytes(topology, traffic, Algorithm::kFullmesh)[0].dispatch, 4 * ranks * 2,
              1e-9);
}

TEST(Traffic, ProbabilityOfTheWholeAndOfNothing) {
  Traffic traffic;
  traffic.top_k = 5, traffic.rank_experts = {1, 2};
  EXPECT_EQ(touch_probability(traffic, 0), 0);
  EXPECT_EQ(touch_probability(traffic, 1), 1);  // more choices than experts
  traffic.top_k = 1;
  EXPECT_DOUBLE_EQ(touch_probability(traffic, 2), 2.0 / 3);
  traffic.top_k = 0;
  EXPECT_EQ(touch_probability(traffic, 3), 0);
}

TEST(Traffic, OfAnExchange) {
  ExchangeConfig config{.max_tokens = 128, .hidden = 7168, .num_experts = 10, .top_k = 4};
  Traffic traffic = traffic_of(config, 4);
  EXPECT_EQ(traffic.tokens, 128);
  EXPECT_THAT(traffic.rank_experts, testing::ElementsAre(3, 3, 2, 2));
  EXPECT_EQ(traffic.row_bytes, 14336);
  EXPECT_EQ(traffic.output_bytes, 14336);
  EXPECT_EQ(traffic.sum_bytes, 14336);
  EXPECT_FALSE(traffic.row_per_rank);
  config.wire = Wire::kFp8, config.node_sums = NodeSums::kFp32, config.layout = Layout::kRankMajor;
  traffic = traffic_of(config, 4);
  EXPECT_EQ(traffic.row_bytes, 7168 + 56 * 4);
  EXPECT_EQ(traffic.sum_bytes, 28672);
  EXPECT_TRUE(traffic.row_per_rank);
  config.wire = Wire::kNone, config.scale_bytes = 12, config.node_sums = NodeSums::kExact;
  config.tp_size = 2;
  traffic = traffic_of(config, 4);
  EXPECT_EQ(traffic.row_bytes, 14348);
  EXPECT_TRUE(traffic.exact);
  EXPECT_THAT(traffic.rank_experts, testing::ElementsAre(5, 0, 5, 0));
}

}  // namespace
}  // namespace ferry::internal
