// kAuto, which computes times from the bytes of each level, against the planner, which simulates
// the same tree, for thousands of random trees and exchanges.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <string>

#include "ferry/plan.h"
#include "traffic/choose.h"

namespace ferry {
namespace {

class TreeDraw {
 public:
  explicit TreeDraw(unsigned seed) : random_(seed) {}

  int number(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }
  bool one_in(int n) { return number(1, n) == 1; }
  int power(int most) { return 1 << number(0, most); }

  // Two to four levels; links with or without rates and latencies, one or several of them.
  std::string tree() {
    std::string text;
    if (one_in(3)) text += "rack:" + std::to_string(number(1, 4)) + properties() + ",";
    text += "host:" + std::to_string(number(1, 6)) + properties();
    if (one_in(3)) text += ",numa:" + std::to_string(number(1, 3)) + properties();
    text += ",rank:" + ranks();
    if (one_in(3)) text += properties();
    return text;
  }

  ExchangeConfig config(int ranks) {
    const int experts = one_in(3) ? number(ranks, 8 * ranks) : ranks * power(4);
    return {.max_tokens = one_in(20) ? 0 : power(12),
            .hidden = 64 * power(7),
            .num_experts = experts,
            .top_k = std::min(experts, number(1, 8)),
            .layout = static_cast<Layout>(number(0, 2)),
            .wire = one_in(3) ? Wire::kInt8 : Wire::kNone,
            .node_sums = static_cast<NodeSums>(number(0, 2))};
  }

 private:
  std::string properties() {
    std::string text;
    if (one_in(5)) text += "@" + std::to_string(power(2)) + "links";
    if (!one_in(3)) text += "@" + std::to_string(0.125 * power(10)) + "GB/s";
    if (!one_in(3)) text += "@" + std::to_string(number(1, 60)) + "us";
    return text;
  }
  std::string ranks() { return std::to_string(number(1, 8)); }

  std::mt19937 random_;
};

Algorithm algorithm_of(const Prediction& prediction) {
  for (const Algorithm algorithm : {Algorithm::kHierarchical, Algorithm::kAllgather})
    if (prediction.strategy == internal::algorithm_name(algorithm)) return algorithm;
  return Algorithm::kFullmesh;
}

// A tree, with the results of both.
struct Case {
  Machine machine = {};
  internal::Traffic traffic = {};
  Plan planned = {};
  AlgorithmChoice choice = {};
};

Case case_of(const std::string& tree, ExchangeConfig config) {
  Case made;
  made.machine.tree = Topology::parse(tree);
  made.traffic = internal::traffic_of(config, made.machine.tree.num_ranks());
  made.planned = plan(made.machine, {.exchange = config}, {.doubled = false});
  made.choice = internal::choose_algorithm(made.machine.tree, made.traffic);
  return made;
}

// Calls check(case) for each random tree of several nodes, until a check fails. Returns the number
// of trees.
template <typename Check>
int for_trees(unsigned num_trees, const Check& check) {
  int num_cases = 0;
  for (unsigned seed = 0; seed < num_trees && !testing::Test::HasFailure(); ++seed) {
    TreeDraw draw(seed);
    const std::string tree = draw.tree();
    const Topology topology = Topology::parse(tree);
    if (topology.num_nodes() == 1) continue;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + tree);
    check(case_of(tree, draw.config(topology.num_ranks())));
    ++num_cases;
  }
  return num_cases;
}

TEST(Auto, TimesLieBetweenThePlannersBoundAndItsTime) {
  const int num_cases = for_trees(500, [](const Case& one) {
    for (const Prediction& planned : one.planned.predictions) {
      SCOPED_TRACE(planned.strategy);
      const internal::Candidate candidate =
          internal::candidate_of(one.machine.tree, one.traffic, algorithm_of(planned));
      EXPECT_GE(candidate.pair_us, planned.bound_us() * (1 - 1e-9));
      EXPECT_LE(candidate.pair_us, planned.pair_us() * (1 + 1e-9));
      ASSERT_EQ(candidate.links.size(), planned.loads.size());
      for (std::size_t i = 0; i < planned.loads.size(); ++i) {
        const Load& load = planned.loads[i];
        EXPECT_EQ(candidate.links[i].name, load.name);
        EXPECT_NEAR(candidate.links[i].dispatch_bytes, load.dispatch_bytes,
                    1e-9 * load.dispatch_bytes);
        EXPECT_NEAR(candidate.links[i].combine_bytes, load.combine_bytes,
                    1e-9 * load.combine_bytes);
      }
    }
  });
  EXPECT_GT(num_cases, 400);
}

// Only in the planner do steps that share a link slow each other down. This matters where mates
// pass rows on between hosts of a rack: the order of algorithms with almost equal times may differ.
TEST(Auto, TakesTheAlgorithmOfThePlannerOrOneAlmostAsFast) {
  int differ = 0;
  const int num_cases = for_trees(2000, [&](const Case& one) {
    const Prediction& best = one.planned.predictions.front();
    if (algorithm_of(best) == one.choice.algorithm) return;
    ++differ;
    const bool racks = one.machine.tree.find_level(Topology::kHost) > 0;
    const auto chosen =
        std::ranges::find(one.planned.predictions, one.choice.algorithm, algorithm_of);
    EXPECT_LE(chosen->pair_us(), (racks ? 1.25 : 1.01) * best.pair_us()) << one.choice.reason;
  });
  EXPECT_LE(differ * 100, num_cases) << "of " << num_cases;
}

// Exchanges, `ferry topology` and `ferry plan` have one sentence, for equal and unequal groups.
TEST(Auto, SaysWhatThePlannerSays) {
  ExchangeConfig config = {.max_tokens = 128, .hidden = 7168, .num_experts = 512, .top_k = 8};
  for (const char* tree :
       {"host:2,rank:4", "host:4@0.125GB/s@50us,rank:2", "rack:8@100GB/s,host:8@1GB/s,rank:8",
        "host:3@2links@5GB/s,rank:3+5+4"}) {
    const Case one = case_of(tree, config);
    EXPECT_THAT(one.choice.reason, testing::EndsWith(one.planned.sentence)) << tree;
  }
}

}  // namespace
}  // namespace ferry
