// The bytes of each strategy on the links of published machines, against figures computed by hand
// and by linear programs (docs/plan.md); and ranks in classes against every rank as a class.
#include <gmock/gmock.h>

#include "ferry/plan.h"
#include "ferry/status.h"
#include "traffic/tree_walk.h"

namespace ferry {
namespace {

using testing::HasSubstr;

constexpr double kRowBytes = 14336, kTokens = 4096;
constexpr double kAll = kTokens * kRowBytes;  // T * b, bytes
// A token touches 16, 32, 64, 128 of 256 experts.
constexpr double kP16 = 0.407705, kP32 = 0.661830, kP64 = 0.903554, kP128 = 0.996511;

Workload workload(int experts = 256) {
  return {.exchange = {.max_tokens = 4096, .hidden = 7168, .num_experts = experts, .top_k = 8}};
}

Prediction predict(const Plan& plan, const std::string& strategy) {
  for (const Prediction& prediction : plan.predictions)
    if (prediction.strategy == strategy) return prediction;
  throw std::invalid_argument("no strategy " + strategy);
}

double bytes(const Prediction& prediction, const std::string& load) {
  for (const Load& of : prediction.loads)
    if (of.name == load) return of.dispatch_bytes;
  throw std::invalid_argument("no load " + load);
}

TEST(Strategies, OneCopyPerVnodeWithoutASecondWay) {
  const Plan plan = ferry::plan(Machine::parse("ubbv2:2"), workload());
  const Prediction one = predict(plan, "hierarchical");
  EXPECT_NEAR(bytes(one, "peer") / kAll, 4 * kP16, 1e-5);
  EXPECT_NEAR(bytes(one, "mate1") / kAll, 2 * kP64, 1e-5);
  EXPECT_NEAR(bytes(one, "nic") / kAll, kP128, 1e-5);
  EXPECT_NEAR(one.dispatch_bound_us, 4501, 1);
  EXPECT_EQ(one.limited_by, "nic");
  EXPECT_EQ(plan.predictions.front().strategy, "hierarchical");
}

TEST(Strategies, SplitOverTwoWaysHalvesWhatOneWayTakes) {
  const Plan plan = ferry::plan(Machine::parse("ubbv2:2@port10"), workload());
  const Prediction split = predict(plan, "split");
  EXPECT_NEAR(split.dispatch_bound_us, 2122, 1);
  EXPECT_EQ(split.limited_by, "mate1");
  EXPECT_NEAR(bytes(split, "nic") / 1e6, 20.0, 0.05);
  EXPECT_NEAR(bytes(split, "port10") / 1e6, 38.5, 0.05);
  EXPECT_NEAR(bytes(split, "mate1") / 1e6, 106.1, 0.05);
  EXPECT_NEAR(bytes(split, "peer") / 1e6, 95.8, 0.05);
  EXPECT_NEAR(predict(plan, "one way per group").dispatch_bound_us, 4081, 1);
  EXPECT_NEAR(predict(plan, "hierarchical, ib").dispatch_bound_us, 4501, 1);
  EXPECT_EQ(plan.predictions.front().strategy, "split");
  EXPECT_LT(split.dispatch_us, 0.5 * predict(plan, "hierarchical, ib").dispatch_us);
}

TEST(Strategies, FullmeshMeetsTheCutBetweenNodes) {
  const Prediction one = predict(ferry::plan(Machine::parse("ubbv2:2"), workload()), "fullmesh");
  EXPECT_NEAR(bytes(one, "nic") / kAll, 8 * kP16, 1e-5);
  EXPECT_NEAR(one.dispatch_bound_us, 14728, 10);
  // With a second way the 8 P(16) of each card share 38 GB/s.
  const Plan two = ferry::plan(Machine::parse("ubbv2:2@port10"), workload());
  EXPECT_NEAR(predict(two, "fullmesh, split").dispatch_bound_us, 5039, 2);
}

TEST(Strategies, FullmeshTakesBothWays) {
  const auto bound = [](const char* machine) {
    return predict(ferry::plan(Machine::parse(machine), workload(16)), "fullmesh")
        .dispatch_bound_us;
  };
  EXPECT_NEAR(bound("machine:2@10GB/s@also4xor,host:2,rank:4"),
              bound("machine:2@10GB/s,host:2,rank:4") / 2, 1);
  EXPECT_NEAR(bound("host:2@10GB/s@also1xor,rank:4"), bound("host:2@10GB/s,rank:4") / 2, 1);
}

TEST(Strategies, OneNodeOfCards) {
  // Each card has two dies of 4096 tokens, and 40 GB/s: 117 MB to the mate, 155 MB to each peer.
  Workload dies = workload();
  dies.exchange.max_tokens = 8192;
  const Plan plan = ferry::plan(Machine::parse("ubbv2:1@peer=40GB/s@mate1=40GB/s"), dies);
  const Prediction one = predict(plan, "hierarchical");
  EXPECT_NEAR(bytes(one, "mate1"), 2 * kAll * kP128, 1e3);
  EXPECT_NEAR(bytes(one, "peer"), 4 * kAll * kP32, 1e3);
  EXPECT_NEAR(one.dispatch_bound_us, 3886, 1);
}

// Half of the tokens for the opposite rank go each way round.
TEST(Strategies, RingsOfEvenSizeAreLoadedEquallyBothWays) {
  for (const char* links : {"link r ring all 10GB/s", "link r pairs 0-1,1-2,2-3,3-0 10GB/s"}) {
    SCOPED_TRACE(links);
    const Plan plan = ferry::plan(Machine::parse(std::string("rank:4\n") + links), workload());
    EXPECT_NEAR(bytes(predict(plan, "fullmesh"), "r") / kAll, 2 * kP64, 1e-5);
    EXPECT_NEAR(bytes(predict(plan, "hierarchical"), "r") / kAll, kP64 + kP128 / 2, 1e-5);
    EXPECT_NEAR(bytes(predict(plan, "allgather"), "r") / kAll, 1.5, 1e-9);
    EXPECT_NEAR(predict(plan, "fullmesh").dispatch_bound_us, 2 * kP64 * kAll / 10e3, 1);
  }
  // On a ring of odd size no two ways are equally long.
  const Plan odd = ferry::plan(Machine::parse("rank:5\nlink r ring all 10GB/s"), workload(5 * 32));
  EXPECT_EQ(predict(odd, "fullmesh").loads[0].instances, 10);
}

std::string torus(const char* levels, const char* across) {
  std::string text = std::string(levels) + "\nlink x " + across + " 50GB/s\nlink y pairs ";
  for (int rank = 0; rank < 16; ++rank)
    text += (rank > 0 ? "," : "") + std::to_string(rank) + "-" + std::to_string((rank + 4) % 16);
  return text + " 50GB/s";
}

TEST(Strategies, ToriOfEvenSizeAreLoadedEquallyBothWays) {
  const Plan plan = ferry::plan(Machine::parse(torus("y:4,rank:4", "ring y")), workload());
  const Prediction one = predict(plan, "hierarchical"), all = predict(plan, "fullmesh");
  EXPECT_NEAR(bytes(one, "x") / 1e6, 173.4, 0.1);
  EXPECT_NEAR(bytes(one, "x") / kAll, 2 * kP32 + 4 * kP16, 1e-4);
  EXPECT_NEAR(bytes(one, "y") / kAll, kP128 / 2 + kP64, 1e-5);
  for (const char* link : {"x", "y"}) EXPECT_NEAR(bytes(all, link) / kAll, 8 * kP16, 1e-5);
}

// A machine as a tree, and as links through ports: one plan.
TEST(Strategies, GroupsBehindASharedPortGetATokenOnce) {
  const char* const texts[][2] = {
      {"host:2@25GB/s,rank:4",
       "host:2,rank:4\nlink eth mesh all port nic\nport nic 25GB/s of host"},
      {"host:2@25GB/s,rank:4",
       "host:2,rank:4\nlink nv mesh host source stated: free\nlink eth mesh all port nic\n"
       "port nic 25GB/s of host"},
      {"host:2@25GB/s,rank:4", "host:2@25GB/s,rank:4\nlink eth mesh all source stated: free"},
      {"host:3@9GB/s,rank:4", "host:3,rank:4\nlink eth mesh all port nic\nport nic 9GB/s of host"},
      {"host:2@25GB/s,rank:3+5",
       "host:2,rank:3+5\nlink eth mesh all port nic\nport nic 25GB/s of host"},
      {"rack:2@10GB/s,host:2@25GB/s,rank:2",
       "rack:2@10GB/s,host:2@25GB/s,rank:2\nlink eth mesh all source stated: free"}};
  for (const auto& [tree, links] : texts) {
    SCOPED_TRACE(links);
    const Plan as_tree = ferry::plan(Machine::parse(tree), workload(240));
    const Plan as_links = ferry::plan(Machine::parse(links), workload(240));
    EXPECT_EQ(as_links.predictions[0].strategy, "hierarchical");
    for (const Prediction& one : as_tree.predictions) {
      SCOPED_TRACE(one.strategy);
      const Prediction same = predict(as_links, one.strategy);
      EXPECT_NEAR(same.dispatch_us, one.dispatch_us, 0.005 * one.dispatch_us);
      EXPECT_NEAR(same.combine_us, one.combine_us, 0.005 * one.combine_us);
      for (const Load& load : same.loads) {
        if (load.gb_s <= 0) continue;
        const std::string level = load.name == "nic" ? "host" : load.name;
        EXPECT_NEAR(load.dispatch_bytes, bytes(one, level), 0.005 * load.dispatch_bytes);
      }
    }
  }
}

TEST(Strategies, LinksWithoutARateInsideAGroupAreTold) {
  const std::string text = "host:2,rank:4\nlink eth mesh all port nic\nport nic 25GB/s of host\n";
  const auto told = testing::Contains(HasSubstr("'eth' has no rate inside a group"));
  EXPECT_THAT(ferry::plan(Machine::parse(text), workload()).notes, told);
  EXPECT_THAT(ferry::plan(Machine::parse(text + "link nv mesh host 90GB/s"), workload()).notes,
              testing::Not(told));
}

// A window has one row for each token with rank_major, and one for each expert else. These rows
// come back where sums are exact.
TEST(Strategies, ExactSumsReturnTheRowsOfTheLayout) {
  for (const Layout layout : {Layout::kRankMajor, Layout::kExpertMajor}) {
    Workload exact = workload();
    exact.exchange.layout = layout;
    exact.exchange.node_sums = NodeSums::kExact;
    const Plan tree = ferry::plan(Machine::parse("host:2@25GB/s,rank:4"), exact);
    const Plan links = ferry::plan(
        Machine::parse("host:2,rank:4\nlink eth mesh all port nic\nport nic 25GB/s of host"),
        exact);
    const double rows = layout == Layout::kRankMajor ? 4 * kP32 : 4.0;
    for (const Load& load : predict(links, "hierarchical").loads) {
      if (load.name == "nic") {
        EXPECT_NEAR(load.combine_bytes / kAll, 4 * rows, 1e-4);
      }
    }
    for (const Prediction& one : tree.predictions)
      EXPECT_NEAR(predict(links, one.strategy).combine_us, one.combine_us, 0.005 * one.combine_us);
  }
}

// A NIC of each rank leads to all other ranks: a rank of the other host passes tokens on.
TEST(Strategies, ANicThatReachesAllRanksSendsOncePerHost) {
  const Plan rails =
      ferry::plan(Machine::parse("host:2,rank:8\nlink nv mesh host port sw\nport sw 160GB/s\n"
                                 "link ib index host port nic\nport nic 50GB/s"),
                  workload());
  const Plan all = ferry::plan(Machine::parse("host:2,rank:8\nlink nv mesh host port sw\n"
                                              "port sw 160GB/s\nlink ib mesh all port nic\n"
                                              "port nic 50GB/s"),
                               workload());
  const Prediction same = predict(all, "hierarchical"), one = predict(rails, "hierarchical");
  EXPECT_NEAR(bytes(same, "nic"), kAll * kP128, 1e3);
  EXPECT_NEAR(same.pair_us(), one.pair_us(), 1e-6 * one.pair_us());
  EXPECT_NEAR(bytes(predict(all, "fullmesh"), "nic"), 8 * kAll * kP16, 1e3);
}

// A port of a host that only links inside the host use is a switch of its ranks.
TEST(Strategies, APortOfAGroupIsSharedByLinksInsideIt) {
  const Plan plan = ferry::plan(
      Machine::parse("host:1,rank:4\nlink pcie mesh host port sw\nport sw 50GB/s of host"),
      workload());
  EXPECT_NEAR(bytes(predict(plan, "fullmesh"), "sw"), 12 * kAll * kP64, 1e3);
}

TEST(Strategies, LimitedRoutingReachesFewerServers) {
  Workload limited = workload();
  limited.groups = 8, limited.groups_chosen = 4;
  limited.exchange.max_tokens = 16;
  const Plan plan = ferry::plan(Machine::parse("a2:8"), limited);
  EXPECT_NEAR(bytes(predict(plan, "hierarchical"), "nic") / (16 * kRowBytes), 3.17538, 1e-5);
}

TEST(Strategies, LoadsThatAreEqualAreUniformRouting) {
  Workload loads = workload();
  loads.loads.assign(256, 3.0);
  const Machine machine = Machine::parse("ubbv2:2@port10");
  const Prediction equal = predict(ferry::plan(machine, loads), "split");
  const Prediction uniform = predict(ferry::plan(machine, workload()), "split");
  EXPECT_NEAR(equal.dispatch_bound_us, uniform.dispatch_bound_us, 0.01);
}

TEST(Strategies, ALoadOnOneRankIsSeen) {
  Workload skewed = workload();
  skewed.loads.assign(256, 1.0);
  for (int expert = 0; expert < 16; ++expert) skewed.loads[expert] = 3;
  const Machine machine = Machine::parse("rank:16\nlink in mesh all port port\nport port 10GB/s");
  const Prediction flat = predict(ferry::plan(machine, workload()), "fullmesh");
  const Prediction hot = predict(ferry::plan(machine, skewed), "fullmesh");
  EXPECT_GT(hot.dispatch_bound_us, 1.5 * flat.dispatch_bound_us);
}

TEST(Strategies, IdsAreCounted) {
  Workload trace = workload(16);
  trace.exchange.top_k = 2;
  trace.ids = {0, 1, 2, 3, -1, -1, 15, 8};  // for rank 0; rank 1; no rank; ranks 7 and 4
  const Plan plan = ferry::plan(Machine::parse("host:2,rank:4"), trace);
  // Half of the tokens of four sources go to host 0, a quarter to host 1.
  EXPECT_NEAR(bytes(predict(plan, "hierarchical"), "host"), 4 * kAll * 0.5, 1);
}

// All presets and shapes of links: classes of equal ranks against every rank as a class.
TEST(Classes, GiveWhatEachRankAloneGives) {
  for (const char* text :
       {"ubbv2:2", "ubbv2:2@port10", "ubbv2dies:2",
        "host:3,rank:4\nlink eth mesh all 9GB/s issue 0.1us port nic\n"
        "port nic 25GB/s of host",
        "a2:4", "h800:3", "a3:2@fabric=196GB/s", "host:3@12.5GB/s@5us,rank:4@20GB/s",
        "rack:2@10GB/s,host:2@9GB/s,rank:3", "host:2@8links@5GB/s,rank:8",
        "rank:8\nlink ring ring all 10GB/s",
        "y:4,rank:2\nlink x ring y 9GB/s\nlink y pairs 0-2,2-4,4-6,6-0,1-3,3-5,5-7,7-1 9GB/s",
        "host:4,rank:4\nlink in mesh host 20GB/s\nlink out ring all 10GB/s",
        "host:2,rank:4\nlink in ring host 20GB/s 2us\nlink out pairs 0-5,1-4,2-7,3-6 10GB/s"}) {
    SCOPED_TRACE(text);
    const Machine machine = Machine::parse(text);
    const Workload shape = workload(96 * 4);
    const Plan classes = ferry::plan(machine, shape, {.chunks = 4, .doubled = false});
    const Plan alone =
        ferry::plan(machine, shape, {.chunks = 4, .by_classes = false, .doubled = false});
    for (const Prediction& one : alone.predictions) {
      SCOPED_TRACE(one.strategy);
      const Prediction same = predict(classes, one.strategy);
      EXPECT_NEAR(same.dispatch_bound_us, one.dispatch_bound_us, 1e-6 * one.dispatch_bound_us);
      EXPECT_NEAR(same.combine_bound_us, one.combine_bound_us, 1e-6 * one.combine_bound_us);
      if (one.chunks > 0 && same.chunks > 0) {
        EXPECT_NEAR(same.dispatch_us, one.dispatch_us, 1e-3 * one.dispatch_us);
        EXPECT_NEAR(same.combine_us, one.combine_us, 1e-3 * one.combine_us);
      }
      ASSERT_EQ(same.loads.size(), one.loads.size());
      for (const Load& load : one.loads) {
        EXPECT_NEAR(bytes(same, load.name), load.dispatch_bytes, 1e-9 * load.dispatch_bytes)
            << load.name;
      }
    }
  }
}

// The planner's bytes of each level equal those by which exchanges choose an algorithm.
TEST(Trees, BytesAreThoseOfEveryLevel) {
  for (const char* text : {"gpu8:2", "host:4@8links,rank:8", "dies16:2", "rack:2,host:2,rank:4",
                           "server:4,rank:4", "host:2,rank:3+5", "rack:2,host:1+2,rank:2+3+1"}) {
    const Machine machine = Machine::parse(text);
    const int ranks = machine.tree.num_ranks();
    for (const NodeSums sums : {NodeSums::kRowType, NodeSums::kFp32, NodeSums::kExact}) {
      Workload shape = workload(ranks * 3);
      shape.exchange.node_sums = sums;
      const internal::Traffic traffic = internal::traffic_of(shape.exchange, ranks);
      for (const Prediction& one :
           ferry::plan(machine, shape, {.chunks = 1, .doubled = false}).predictions) {
        const Algorithm algorithm = one.strategy == "fullmesh"       ? Algorithm::kFullmesh
                                    : one.strategy == "hierarchical" ? Algorithm::kHierarchical
                                                                     : Algorithm::kAllgather;
        const auto levels = internal::level_bytes(machine.tree, traffic, algorithm);
        for (const Load& load : one.loads) {
          SCOPED_TRACE(std::string(text) + " " + one.strategy + " " + load.name);
          const internal::LinkBytes& level = levels.at(machine.tree.find_level(load.name));
          EXPECT_NEAR(load.dispatch_bytes, level.dispatch, 1e-9 * level.dispatch);
          EXPECT_NEAR(load.combine_bytes, level.combine, 1e-9 * level.combine);
        }
      }
    }
  }
}

// Only the links that ranks use take memory of the planner.
TEST(Trees, MoreLinksThanRanksAreNotUsed) {
  const internal::Traffic traffic = internal::traffic_of(workload(65536).exchange, 65536);
  const auto bytes = [&](const char* text) {
    return internal::level_bytes(Topology::parse(text), traffic, Algorithm::kFullmesh)[0].dispatch;
  };
  EXPECT_EQ(bytes("rank:65536@65536links"), bytes("rank:65536"));
}

TEST(Plan, SaysWhatLimitsAndWhatWouldHelp) {
  const Plan plan = ferry::plan(Machine::parse("ubbv2:2"), workload());
  EXPECT_THAT(plan.sentence, HasSubstr("nic limits it"));
  EXPECT_THAT(plan.notes, testing::Contains("routing uniform"));
  for (const auto& [name, us] : plan.predictions.front().doubled) {
    if (name == "nic") {
      EXPECT_LT(us, 0.6 * plan.predictions.front().pair_us());
    } else {
      EXPECT_GT(us, 0.95 * plan.predictions.front().pair_us());
    }
  }
}

// The same for each way to write the machine.
TEST(Plan, TheMemoryOfARankIsTheWindowOfTheEngine) {
  const WindowBytes engine = window_bytes(workload().exchange, 8);
  for (const char* text : {"host:2@25GB/s,rank:4", "rank:8@5GB/s",
                           "host:2,rank:4\nlink eth mesh all port nic\nport nic 25GB/s of host",
                           "host:2,rank:4\nlink in mesh host 9GB/s\nlink out index host 5GB/s"}) {
    const Plan plan = ferry::plan(Machine::parse(text), workload());
    EXPECT_EQ(plan.window.expected, engine.expected) << text;
    EXPECT_EQ(plan.window.worst, engine.worst) << text;
  }
  Workload shared = workload();
  shared.parallel.tp = 4;
  const Plan quarter = ferry::plan(Machine::parse("rank:8@5GB/s"), shared);
  shared.exchange.max_tokens /= 4;
  EXPECT_EQ(quarter.window.expected, window_bytes(shared.exchange, 8).expected);
}

TEST(Plan, AShapeThatTheEngineRefusesIsTold) {
  Workload large = workload();
  large.exchange.max_tokens = 1 << 24;
  const Plan plan = ferry::plan(Machine::parse("rank:64@5GB/s"), large);
  EXPECT_EQ(plan.window.worst, 0U);
  EXPECT_THAT(plan.notes,
              testing::Contains(HasSubstr("such an exchange is refused: a rank could")));
}

TEST(Plan, SaysWhatMemoryAndComputeDoToIt) {
  Machine machine = Machine::parse("ubbv2:2");
  machine.memory_gb = 0.5;
  machine.contention = 2;
  const Plan plan = ferry::plan(machine, workload());
  EXPECT_THAT(plan.notes, testing::Contains(HasSubstr("MB, but a rank has 0.5 GB")));
  machine.memory_gb = 64;
  EXPECT_THAT(ferry::plan(machine, workload()).notes,
              testing::Not(testing::Contains(HasSubstr("but a rank has"))));
  EXPECT_THAT(plan.notes, testing::Contains(HasSubstr("beside compute hierarchical takes")));
}

// 4 ranks with 4,096 tokens and 8 experts for each token: 131,072 rows, 1,879 MB, none in a cache.
TEST(Plan, TheProcessorsOfANodeCopyItsRows) {
  const auto pair = [](const std::string& host) {
    const std::string copies = "dispatch 4us 26ns 60GB/s 18GB/s combine 3us 20ns 90GB/s 25GB/s ";
    const Plan plan = ferry::plan(Machine::parse("rank:4\nhost " + copies + host), workload());
    return predict(plan, "fullmesh");
  };
  const double rows_us = 4 * kTokens * 8 * kRowBytes / 1e3;
  const double tokens = 4 * 4 * kTokens * kP64;  // one for each rank that receives it
  const Prediction beyond = pair("caches 4MB 40MB");
  EXPECT_NEAR(beyond.dispatch_us, 4 * 4 + tokens * 0.026 + rows_us / 18, 0.1);
  EXPECT_NEAR(beyond.combine_us, 4 * 3 + tokens * 0.020 + rows_us / 25, 0.1);
  const Prediction in = pair("caches 2000MB 4000MB");
  EXPECT_NEAR(in.dispatch_us, 4 * 4 + tokens * 0.026 + rows_us / 60, 0.1);
  const Prediction half = pair("caches 1000MB 2759MB");  // 1,879 MB are in the middle
  EXPECT_NEAR(half.dispatch_us, 4 * 4 + tokens * 0.026 + rows_us * (0.5 / 60 + 0.5 / 18), 20);
  // Two ranks wait for a processor, then no rank does.
  const Prediction waiting = pair("caches 4MB 40MB processors 2 waiting 5us 1.5us");
  EXPECT_NEAR(waiting.dispatch_us - beyond.dispatch_us, 2 * 5, 1e-6);
  EXPECT_NEAR(waiting.combine_us - beyond.combine_us, 2 * 1.5, 1e-6);
  EXPECT_EQ(pair("caches 4MB 40MB processors 8 waiting 5us 1.5us").dispatch_us, beyond.dispatch_us);
}

TEST(Plan, TheSameBitsEveryTime) {
  const Machine machine = Machine::parse("ubbv2:2@port10");
  const Plan first = ferry::plan(machine, workload()), second = ferry::plan(machine, workload());
  for (std::size_t i = 0; i < first.predictions.size(); ++i) {
    EXPECT_EQ(first.predictions[i].dispatch_us, second.predictions[i].dispatch_us);
    EXPECT_EQ(first.predictions[i].combine_us, second.predictions[i].combine_us);
  }
}

}  // namespace
}  // namespace ferry
