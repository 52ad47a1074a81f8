// Random machines of up to 64 ranks. Plans of ranks in classes, and plans from sums over hops, are
// compared with plans that have tasks for every pair of ranks.
#include <gmock/gmock.h>

#include <algorithm>
#include <list>
#include <optional>
#include <random>
#include <string>

#include "ferry/plan.h"
#include "ferry/status.h"
#include "plan/build.h"
#include "plan/predict.h"
#include "plan/strategies.h"
#include "plan/summed.h"

namespace ferry {
namespace {

constexpr int kMachines = 40;

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  int number(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }
  bool one_in(int n) { return number(1, n) == 1; }

  // Two or three levels, links inside and between groups, and sometimes a second way, which often
  // only some of the ranks have.
  std::string machine() {
    const bool three = one_in(2);
    const int hosts = number(2, three ? 4 : 8), cards = number(2, 4), inner = three ? 2 : 1;
    ranks_ = hosts * inner * cards;
    std::string text = "host:" + std::to_string(hosts) + (three ? ",card:2" : "") +
                       ",rank:" + std::to_string(cards) + "\n";
    const std::string inside = three ? "card" : "host";
    text += "link in " + std::string(one_in(3) ? "ring " : "mesh ") + inside + properties("in");
    if (three) text += "link mid index card" + properties("mid");
    const std::string out = one_in(4) ? "mesh all" : one_in(4) ? "ring all" : "index host";
    text += "link out " + out + properties("out") + second_way();
    for (const std::string& port : ports_)
      text += "port " + port + " " + rate() + (one_in(3) ? " of host" : "") +
              (one_in(4) ? " half" : "") + "\n";
    if (one_in(3)) text += "engine copy " + rate() + " sends relays reorders\n";
    if (one_in(4)) text += "engine pass " + rate() + " relays\n";
    return text;
  }

  // Uniform routing, routing limited to groups, or loads that differ for some ranks or for all.
  Workload workload() {
    Workload workload{.exchange = {.max_tokens = number(1, 4096),
                                   .hidden = 1024,
                                   .num_experts = ranks_ * number(1, 3),
                                   .top_k = number(1, 2)}};
    workload.exchange.node_sums = static_cast<NodeSums>(number(0, 2));
    std::vector<double>& loads = workload.loads;
    if (one_in(2)) loads.assign(workload.exchange.num_experts, 1);
    if (!loads.empty() && one_in(2)) loads[number(0, static_cast<int>(loads.size()) - 1)] = 1.5;
    if (!loads.empty() && one_in(3))
      for (double& load : loads) load += 0.01 * number(0, 20);
    if (loads.empty() && one_in(3)) workload.groups = ranks_ / 2, workload.groups_chosen = 2;
    return workload;
  }

 private:
  std::string rate() { return std::to_string(number(5, 60)) + "GB/s"; }

  std::string properties(const std::string& name) {
    std::string text = one_in(5) ? "" : " " + rate();
    if (one_in(3)) text += " " + std::to_string(number(1, 9)) + "us";
    if (one_in(6)) text += " issue 0.05us";
    if (one_in(6)) text += " curve 4096:1.5,1048576:12";
    if (one_in(2)) text += " port " + ports_.emplace_back("port_" + name);
    return text + "\n";
  }

  std::string second_way() {
    switch (number(0, 3)) {
      case 0: return "";
      case 1: return "link second index host" + properties("second");
      case 2: return "link second xor " + std::to_string(number(1, 3)) + properties("second");
      default: break;
    }
    std::string pairs;
    for (int i = number(1, ranks_ / 4); i > 0; --i)
      pairs +=
          (pairs.empty() ? "" : ",") + std::to_string(2 * i - 2) + "-" + std::to_string(ranks_ - i);
    return "link second pairs " + pairs + properties("second");
  }

  std::mt19937 random_;
  int ranks_ = 0;
  std::vector<std::string> ports_;
};

// nullopt if the text is not a valid machine.
std::optional<Plan> plan_of(const std::string& text, const Workload& workload, bool by_classes) {
  try {
    return plan(Machine::parse(text), workload,
                {.chunks = 2, .by_classes = by_classes, .doubled = false});
  } catch (const Error&) {
    return std::nullopt;
  }
}

const Prediction& find(const Plan& plan, const std::string& strategy) {
  return *std::ranges::find(plan.predictions, strategy, &Prediction::strategy);
}

void expect_near(double a, double b, const char* what) {
  EXPECT_NEAR(a, b, 1e-9 * std::max(a, b)) << what;
}

void expect_same_loads(const Prediction& a, const Prediction& b) {
  expect_near(a.received_bytes, b.received_bytes, "received");
  expect_near(a.staged_bytes, b.staged_bytes, "staged");
  ASSERT_EQ(a.loads.size(), b.loads.size());
  for (const Load& load : a.loads) {
    SCOPED_TRACE(load.name);
    const auto same = std::ranges::find(b.loads, load.name, &Load::name);
    ASSERT_NE(same, b.loads.end());
    expect_near(load.dispatch_bytes, same->dispatch_bytes, "bytes of dispatch");
    expect_near(load.combine_bytes, same->combine_bytes, "bytes of combine");
    expect_near(load.dispatch_us, same->dispatch_us, "work of dispatch");
    expect_near(load.combine_us, same->combine_us, "work of combine");
    EXPECT_EQ(load.instances, same->instances);
  }
}

// Calls check(machine, workload) for each random machine, until a check fails.
template <typename Check>
void for_machines(const Check& check) {
  for (unsigned seed = 0; seed < kMachines && !testing::Test::HasFailure(); ++seed) {
    Draw draw(seed);
    const std::string text = draw.machine();
    const Workload workload = draw.workload();
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text);
    check(text, workload);
  }
}

TEST(RandomMachines, RanksInClassesTakeTheTimeOfEachOnItsOwn) {
  int in_classes = 0;
  for_machines([&](const std::string& text, const Workload& workload) {
    const std::optional<Plan> classes = plan_of(text, workload, true);
    const std::optional<Plan> alone = plan_of(text, workload, false);
    ASSERT_EQ(classes.has_value(), alone.has_value());
    if (!classes) return;
    in_classes += testing::Value(classes->notes, testing::Contains(testing::HasSubstr(" class")));
    for (const Prediction& one : alone->predictions) {
      SCOPED_TRACE(one.strategy);
      const Prediction& same = find(*classes, one.strategy);
      expect_same_loads(one, same);
      // Equal hops end at the same time, so the bound of classes may be higher.
      EXPECT_LE(one.bound_us(), same.bound_us() * (1 + 1e-9));
      EXPECT_LE(same.bound_us(), same.pair_us() * (1 + 1e-9));
      if (one.chunks != same.chunks) continue;
      expect_near(one.dispatch_us, same.dispatch_us, "dispatch");
      expect_near(one.combine_us, same.combine_us, "combine");
    }
  });
  EXPECT_GT(in_classes, kMachines / 4);
}

// The hot rank is between the first and the last rank of the other class.
TEST(RandomMachines, AHotRankInTheMiddleIsAClass) {
  Workload hot{.exchange = {.max_tokens = 4096, .hidden = 7168, .num_experts = 16, .top_k = 2}};
  hot.loads.assign(16, 1.0);
  hot.loads[5] = 4;
  const char* const text = "rank:16\nlink in mesh all port port\nport port 10GB/s";
  const Plan classes = *plan_of(text, hot, true), alone = *plan_of(text, hot, false);
  EXPECT_THAT(classes.notes, testing::Contains("16 ranks in 2 classes"));
  expect_same_loads(find(classes, "fullmesh"), find(alone, "fullmesh"));
}

// The links of a rank to its peers carry different bytes if only one peer has a second way.
TEST(RandomMachines, LinksOfAClassThatCarryDifferentBytes) {
  const char* const text =
      "machine:8,vnode:2,rank:4\nlink peer mesh vnode 50GB/s\n"
      "link mate pairs 0-5,1-4,2-7,3-6 in machine 50GB/s\n"
      "link ib index machine port nic\nport nic 13GB/s\nlink port10 xor 12 25GB/s";
  const Workload uniform{
      .exchange = {.max_tokens = 4096, .hidden = 7168, .num_experts = 64, .top_k = 8}};
  const Plan classes = *plan_of(text, uniform, true), alone = *plan_of(text, uniform, false);
  EXPECT_THAT(classes.notes, testing::Contains("64 ranks in 1 class"));
  expect_same_loads(find(classes, "hierarchical"), find(alone, "hierarchical"));
}

// Compares every strategy. Returns the number of strategies.
int expect_sums_of_tasks(const std::string& text, const Workload& workload) {
  const internal::Graph graph(Machine::parse(text));
  const internal::Classes alone = internal::each_alone(graph.num_ranks());
  const internal::Traffic traffic = internal::traffic_of(workload.exchange, graph.num_ranks());
  const internal::Routing routing(workload, traffic.rank_experts);
  const internal::BuildInput input{
      .graph = graph, .classes = alone, .traffic = traffic, .routing = routing, .chunks = 2};
  int checked = 0;
  for (const internal::Strategy& strategy : internal::strategies_of(graph)) {
    SCOPED_TRACE(strategy.name);
    std::list<internal::Forest> forests;
    std::vector<internal::WeighedForest> weighed;
    for (const internal::TokenPath& path : strategy.paths)
      weighed.push_back(
          internal::weigh(graph, forests.emplace_back(graph, routing, alone.first, path.rule),
                          traffic, strategy.copies, path.share));
    const Prediction total =
        internal::predict(strategy.name, internal::build_summed(input, weighed), {.chunks = 2});
    const Prediction tasks =
        internal::predict(strategy.name, internal::build(input, strategy.copies, weighed),
                          {.chunks = 2, .doubled = false});
    expect_same_loads(tasks, total);
    expect_near(tasks.dispatch_bound_us, total.dispatch_bound_us, "bound of dispatch");
    expect_near(tasks.combine_bound_us, total.combine_bound_us, "bound of combine");
    EXPECT_LE(total.pair_us(), tasks.pair_us() * (1 + 1e-9));
    EXPECT_GE(total.at_most_us, tasks.pair_us() * (1 - 1e-9));
    for (const auto& [name, us] : total.doubled) EXPECT_LE(us, total.pair_us() * (1 + 1e-9));
    ++checked;
  }
  return checked;
}

TEST(RandomMachines, SumsOverAllTreesAreThoseOfTheTasks) {
  int checked = 0;
  for_machines([&](const std::string& text, const Workload& workload) {
    if (plan_of(text, workload, true)) checked += expect_sums_of_tasks(text, workload);
  });
  EXPECT_GT(checked, kMachines);
}

// A tree with rates, and the same machine as a mesh behind a port of each host or behind the rates
// of the tree: equal bounds.
TEST(RandomMachines, ATreeAndItsLinksHaveEqualBounds) {
  for (unsigned seed = 0; seed < kMachines; ++seed) {
    Draw draw(seed);
    const std::string rate = std::to_string(draw.number(1, 50)) + "GB/s";
    const bool racks = draw.one_in(3);
    std::string hosts = "host:" + std::to_string(draw.number(2, 5)), ranks = ",rank:";
    if (!racks && draw.one_in(2))
      hosts = "host:3", ranks += std::to_string(draw.number(1, 4)) + "+2+3";
    else
      ranks += std::to_string(draw.number(1, 5));
    std::string tree = hosts + "@" + rate + ranks;
    std::string links =
        hosts + ranks + "\nlink eth mesh all port nic\nport nic " + rate + " of host";
    if (racks) {
      tree = "rack:2@9GB/s," + tree;
      links = tree + "\nlink eth mesh all source stated: free";
    }
    Workload workload{.exchange = {.max_tokens = draw.number(1, 4096),
                                   .hidden = 1024,
                                   .num_experts = draw.number(16, 256),
                                   .top_k = draw.number(1, 8)}};
    workload.exchange.node_sums = static_cast<NodeSums>(draw.number(0, 2));
    if (draw.one_in(2)) workload.exchange.layout = Layout::kRankMajor;
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + tree + "\n" + links);
    const std::optional<Plan> a = plan_of(tree, workload, true), b = plan_of(links, workload, true);
    ASSERT_TRUE(a && b);
    for (const Prediction& one : a->predictions) {
      SCOPED_TRACE(one.strategy);
      EXPECT_NEAR(find(*b, one.strategy).bound_us(), one.bound_us(), 0.02 * one.bound_us());
    }
  }
}

// The parts of a mesh: its links between mates of groups, and inside groups.
TEST(RandomMachines, SumsOverPartsOfAMesh) {
  const Workload workload{
      .exchange = {.max_tokens = 64, .hidden = 1024, .num_experts = 28, .top_k = 2}};
  for (const char* text :
       {"host:7,rank:2\nlink out mesh all 56GB/s 3us port nic\nport nic 50GB/s of host\n"
        "engine pass 51GB/s relays",
        "host:7,rank:2\nlink out mesh all 56GB/s 3us issue 0.05us port nic\nport nic 50GB/s of "
        "host",
        "host:2,rank:3+4\nlink out mesh all 9GB/s 3us port nic\nport nic 5GB/s of host",
        "rack:2@9GB/s,host:2@8GB/s,rank:2\nlink out mesh all curve 4096:1.5,1048576:12"})
    EXPECT_EQ(expect_sums_of_tasks(text, workload), 3) << text;
}

// A rank waits for the slowest of the sums that it adds to its own, over whichever link.
TEST(RandomMachines, SumsKnowTheSlowestHopBehindAnother) {
  const Workload few{.exchange = {.max_tokens = 1, .hidden = 64, .num_experts = 16, .top_k = 8}};
  for (const char* latencies : {"1us 20us", "20us 1us"}) {
    const std::string text(latencies), inner = text.substr(0, text.find(' ')),
                                       outer = text.substr(text.find(' ') + 1);
    EXPECT_GT(expect_sums_of_tasks("machine:2,vnode:2,rank:2\nlink peer mesh vnode 50GB/s " +
                                       inner + "\nlink mate pairs 0-2,1-3 in machine 50GB/s " +
                                       outer + "\nlink ib index machine 10GB/s 3us",
                                   few),
              0);
  }
}

}  // namespace
}  // namespace ferry
