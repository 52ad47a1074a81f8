// The expected bytes of each level, compared with a count over every possible choice of experts.
#include "traffic/tree_walk.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace ferry::internal {
namespace {

using testing::DoubleNear;

constexpr Algorithm kAlgorithms[] = {Algorithm::kFullmesh, Algorithm::kHierarchical,
                                     Algorithm::kAllgather};

// Moves tokens through a topology: every row that one rank sends to another counts on every link
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

  // Counts bytes on the links of a path: at each level where the two ranks are in different groups,
  // the link out of one group and the link into the other. Between nodes these are the levels down
  // to the hosts, inside a node the levels inside it.
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

  // The ranks of a group that have rows of a token. Outside all levels there is one group.
  std::vector<int> rows_in(int group, int level, const std::vector<int>& owners) const {
    std::vector<int> here;
    for (const int owner : owners)
      if (level < 0 || topology_.group_of(owner, level) == group) here.push_back(owner);
    if (!traffic_.row_per_rank) return here;
    const std::set<int> ranks(here.begin(), here.end());
    return {ranks.begin(), ranks.end()};
  }

  void send(int source, const std::vector<int>& owners) {
    const int host = topology_.find_level(Topology::kHost);
    if (algorithm_ != Algorithm::kFullmesh) return serve(source, 0, owners);
    store(source, owners);
    for (int node = 0; node < topology_.num_nodes(); ++node) {
      const int mate = topology_.mate(source, node);
      if (mate == source) continue;
      cross(source, mate, rows_in(node, host, owners));
      store(mate, owners);
    }
  }

  // `holder` has the token. It forwards the token to the siblings of its own group at `level`, then
  // does the same one level further in.
  void serve(int holder, int level, const std::vector<int>& owners) {
    if (level > topology_.find_level(Topology::kHost)) return store(holder, owners);
    const int own = topology_.group_of(holder, level);
    const std::span<const int> mine = topology_.members(own, level);
    const auto position = std::ranges::find(mine, holder) - mine.begin();
    for (int group = 0; group < topology_.level(level).num_groups(); ++group) {
      const std::span<const int> ranks = topology_.members(group, level);
      if (group == own || !beside(holder, ranks[0], level)) continue;
      const Topology::Link& link = topology_.level(level).link;
      const int mate = mate_of(holder, level, ranks, position);
      cross_and_serve(holder, mate, 1 - link.second_share(), {group, level}, owners);
      if (!link.second_way) continue;
      const int second = ranks[(position ^ link.second_way->mates_xor) % ranks.size()];
      cross_and_serve(holder, second, link.second_share(), {group, level}, owners);
    }
    serve(holder, level + 1, owners);
  }

  // The same for `part` of the tokens, which cross to `mate`.
  void cross_and_serve(int holder, int mate, double part, std::array<int, 2> to,
                       const std::vector<int>& owners) {
    const auto [group, level] = to;
    const double all = std::exchange(tokens_, part * tokens_);
    cross(holder, mate, rows_in(group, level, owners));
    serve(mate, level + 1, owners);
    tokens_ = all;
  }

  int mate_of(int holder, int level, std::span<const int> ranks, std::ptrdiff_t position) const {
    const Topology::Link& link = topology_.level(level).link;
    const int above = level == 0 ? 0 : topology_.group_of(holder, level - 1);
    const int first = level == 0 ? 0 : topology_.members(above, level - 1)[0];
    for (const auto& [a, b] : link.mates) {
      if (first + a == holder && std::ranges::count(ranks, first + b) > 0) return first + b;
      if (first + b == holder && std::ranges::count(ranks, first + a) > 0) return first + a;
    }
    return ranks[(position ^ link.mates_xor) % ranks.size()];
  }

  // Whether both ranks are in one group of the next level out.
  bool beside(int rank, int other, int level) const {
    return level == 0 ||
           topology_.group_of(rank, level - 1) == topology_.group_of(other, level - 1);
  }

  // Rows are stored in the windows of the holder's node, and outputs are read there.
  void store(int holder, const std::vector<int>& owners) {
    const int host = topology_.find_level(Topology::kHost);
    for (const int owner : rows_in(topology_.node_of(holder), host, owners)) {
      add(holder, owner, tokens_ * traffic_.row_bytes, dispatch_);
      add(owner, holder, tokens_ * traffic_.output_bytes, combine_);
    }
  }

  // Tokens go from `holder` to its mate, and sums come back. `rows`: the rows of the mate's group.
  void cross(int holder, int mate, const std::vector<int>& rows) {
    const std::set<int> ranks(rows.begin(), rows.end());
    const double once = rows.empty() ? 0 : 1;
    const double copies =
        algorithm_ == Algorithm::kFullmesh ? static_cast<double>(ranks.size()) : once;
    const double there = algorithm_ == Algorithm::kAllgather ? 1 : copies;
    const double back = traffic_.exact ? static_cast<double>(rows.size()) * traffic_.output_bytes
                                       : copies * traffic_.sum_bytes;
    add(holder, mate, tokens_ * there * traffic_.row_bytes, dispatch_);
    add(mate, holder, tokens_ * back, combine_);
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

// Every rank has two experts, except the last, which has none or one.
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
       {"rank:4",
        "host:1,numa:2,rank:2",
        "host:2,rank:2",
        "host:2,rank:1+3",
        "host:3,rank:1+2+3",
        "rack:2,host:2+1,numa:1+2+1,rank:2+1+1+2",
        "host:2@2links,vnode:2@2links,rank:2",
        "rack:2@3links,host:2@2links,rank:2+1+1+3",
        "host:2@2links,rank:2+5",
        "rack:2,host:2,rank:3",
        "rack:3,host:1+2+3,rank:1+2+1+1+2+1",
        "rack:1,host:3,rank:2",
        "row:2@2links,rack:2,host:1+2+1+1@2links,numa:2+1+1+1+2,rank:1+2+1+1+1+1+1",
        "machine:2@8links,host:2,rank:2@2links",
        "row:2,rack:1+2,host:2+1+2,rank:1+3+2+1+2",
        "row:3,rack:1+2+1,host:1,rank:2+1+2+1",
        "host:2@1xor@2links,rank:4+2",
        "rack:2@3xor@2links,host:2@1xor,rank:2",
        "rack:2,host:2@pairs0-3+1-2@2links,rank:2",
        "rack:2@pairs0-6+1-5+2-4+3-7@4links,host:2,rank:2",
        "host:3@pairs0-2+0-4+2-5+1-3+1-5+3-4@2links,rank:2",
        "rack:2@10GB/s@also1xor30GB/s@2links,host:2@1xor,rank:2",
        "rack:2@also1xor@4links,host:1+2,rank:4+2+2",
        "rack:2@pairs0-6+1-5+2-4+3-7@also1xor@4links,host:2,rank:2"}) {
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

// 2 x 4 ranks, 8 of 256 experts.
TEST(Traffic, TokenReachesTwoAndAHalfRemoteRanks) {
  const Topology topology = Topology::parse("host:2,rank:4");
  Traffic traffic = traffic_of({.max_tokens = 1, .hidden = 1, .num_experts = 256, .top_k = 8}, 8);
  const double ranks = 4 * touch_probability(traffic, 32);
  EXPECT_NEAR(ranks, 2.65, 0.01);
  EXPECT_NEAR(level_bytes(topology, traffic, Algorithm::kFullmesh)[0].dispatch, 4 * ranks * 2,
              1e-9);
}

// 2 x 2 x 4 ranks. Each rack gets a token of each rank of the other rack, if the token has rows
// there. A host sends the tokens of its four ranks to the other rack, and eight to the other host
// of its rack: those of its four ranks, and those that the four got from their mates in the other
// rack.
TEST(Traffic, TokenCrossesToARackOnce) {
  const Topology topology = Topology::parse("rack:2,host:2,rank:4");
  const Traffic all =
      traffic_of({.max_tokens = 1, .hidden = 1, .num_experts = 16, .top_k = 16}, 16);
  const Traffic some =
      traffic_of({.max_tokens = 1, .hidden = 1, .num_experts = 256, .top_k = 8}, 16);
  const double rack = touch_probability(some, 128), host = touch_probability(some, 64);
  const auto rows = [&](const Traffic& traffic, Algorithm algorithm) {
    std::vector<double> rows;  // of two bytes
    for (const LinkBytes& link : level_bytes(topology, traffic, algorithm)) {
      rows.push_back(link.dispatch / 2);
      rows.push_back(link.combine / 2);
    }
    return rows;
  };
  using testing::ElementsAre;
  EXPECT_THAT(rows(all, Algorithm::kHierarchical), ElementsAre(8, 8, 12, 12, 12, 12));
  EXPECT_THAT(rows(all, Algorithm::kAllgather), ElementsAre(8, 8, 12, 12, 12, 12));
  EXPECT_THAT(rows(all, Algorithm::kFullmesh), ElementsAre(64, 64, 48, 48, 12, 12));
  EXPECT_THAT(rows(some, Algorithm::kHierarchical),
              testing::Pointwise(testing::DoubleEq(), {8 * rack, 8 * rack, 4 * rack + 8 * host,
                                                       4 * rack + 8 * host, 6.0, 6.0}));
  EXPECT_THAT(rows(some, Algorithm::kAllgather),
              testing::Pointwise(testing::DoubleEq(),
                                 {8.0, 8 * rack, 12.0, 4 * rack + 8 * host, 6.0, 6.0}));
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
